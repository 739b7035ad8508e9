"""Logs of other hosts, which stay there and are fetched piece by piece when a user asks for them.

The joined host answers (`log_server`), the controller passes requests and answers on (`log_relay`), and the command
line asks, and checks (`log_client`). No part keeps more than one piece for each host, whatever another one sends.
"""
