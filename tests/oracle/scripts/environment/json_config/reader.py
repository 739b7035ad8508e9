import os

OFFLINE = os.environ.get("MY_OFFLINE", "0") == "1"
HUB = os.environ.get("MY_HUB", "~/hub")
HOME = os.path.expanduser("~")
