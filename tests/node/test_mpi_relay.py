"""What a command printed on another host reaches Open MPI here whole, however slowly that reads."""

import json
import selectors
import socket

from distdl_jupyter.node.mpi_shell import Shells


def test_a_slow_mpirun_gets_all_output_and_the_end(tmp_path):
    selector, said = selectors.DefaultSelector(), []
    shells = Shells(selector, lambda type_, **fields: said.append((type_, fields)))
    shells.listen(tmp_path / "relay")

    def go_on():
        while ready := selector.select(0):
            for key, _ in ready:
                key.data()

    with socket.socket(socket.AF_UNIX) as mpirun:
        mpirun.connect(str(tmp_path / "relay"))
        mpirun.sendall(b'{"host": "b", "command": "orted"}\n')
        go_on()
        assert said == [("shell", {"shell": 0, "host": "b", "command": "orted"})]
        output = [f"{number} " * 100_000 for number in range(20)]
        for text in output:
            shells.answer(0, {"out": text})
        shells.answer(0, {"code": 3})
        mpirun.settimeout(0.01)
        content = b""
        while not content.endswith(b'{"code": 3}\n'):
            go_on()
            piece = mpirun.recv(65_536)
            assert piece, "the end came before all was told"
            content += piece
        go_on()
        assert mpirun.recv(1) == b""
    assert [json.loads(line) for line in content.splitlines()] == [*({"out": text} for text in output), {"code": 3}]
    for key in list(selector.get_map().values()):
        key.fileobj.close()
    selector.close()
