"""The foreground process of a run, or of a host that joined one."""
