"""Ctrl-C between the creation of a run's folder and its supervisor is counted; then the handler is restored."""

from __future__ import annotations

import signal

import pytest

from flowdist.runtime.supervisor.startup_signals import StartupSignals


def test_an_interrupt_raises_only_when_checked() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StartupSignals() as early:
        early.check()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert early.count == 2
        with pytest.raises(KeyboardInterrupt):
            early.check()
    assert signal.getsignal(signal.SIGINT) == before


def test_end_restores_the_handler_before() -> None:
    with StartupSignals() as early:
        early.end()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        mine = signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert early.count == 0 and signal.getsignal(signal.SIGINT) == signal.SIG_IGN, "of whoever has come since"
    signal.signal(signal.SIGINT, mine)


def test_a_hang_up_counts_only_as_the_first_interrupt() -> None:
    with StartupSignals() as early:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert early.count == 1
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        assert early.count == 2


def test_a_hang_up_that_is_ignored_does_not_count() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StartupSignals() as early:
            signal.raise_signal(signal.SIGHUP)
            assert early.count == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
