"""What modules keep of a process: multiprocessing's name, number and key, threading's main thread, ssl's numbers."""

import multiprocessing
import os
import ssl
import threading
import uuid

import probe

KEY = bytes(multiprocessing.current_process().authkey).hex()
SSL = ssl.RAND_bytes(8).hex()
CLOCK = uuid.uuid1().clock_seq
MAIN = threading.main_thread()
IDENT = threading.get_ident()
NATIVE = threading.get_native_id()
probe.note("kept")
process = multiprocessing.current_process()
probe.first_step(
    key=KEY,
    ssl=SSL,
    later_ssl=ssl.RAND_bytes(8).hex(),
    own=[process.pid == os.getpid(), process.name, multiprocessing.parent_process() is None, process.daemon],
    native=[NATIVE == os.getpid(), MAIN.native_id == os.getpid(), IDENT == threading.get_ident(), MAIN.ident == IDENT],
)
