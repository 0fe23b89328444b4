"""How ranks meet: each backend turns a spec and a placement into a plan, purely, without touching anything."""
