"""The agent of one node as a pure machine: it starts, stops and reports workers, and fences when its lease ends."""
