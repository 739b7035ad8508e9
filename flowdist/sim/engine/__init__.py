"""Virtual time, links, and the controller and agents of production behind them.

The engine knows nothing of what workers do: nodes call them through a protocol (`sides.WorkerSide`).
"""
