"""Cells that show that the ranks of TensorFlow, or the nodes of Ray, have really met; they take few seconds."""

#: Every rank's value tells the sum over all ranks of (rank + 1).
TENSORFLOW = """
    import json, os
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = int(os.environ["RANK"])

    @tf.function
    def summed():
        def mine():
            return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(rank + 1.0))
        return strategy.run(mine)

    {"rank": rank, "total": float(summed()), "workers": json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]}
"""
RAY = """
    import time
    import ray
    ray.init()

    @ray.remote(num_cpus=1)
    def square(number):
        print("square of", number)
        return number * number

    squares = ray.get([square.remote(number) for number in range(4)])
    until = time.monotonic() + 60
    while (nodes := sum(node["Alive"] for node in ray.nodes())) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    {"squares": squares, "nodes": nodes}
"""
