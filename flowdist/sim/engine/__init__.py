"""Virtual time, links, and the controller and agents of production behind them.

Knows nothing of what workers do: nodes call them through a protocol (`node.WorkerSide`).
"""
