"""Communication backends for ranks. Each one turns a spec and a placement into a plan, without side effects."""
