"""Context of decimals, locale, and the time zone are set before RANK is read."""

import decimal
import locale
import os
import time

import probe

decimal.getcontext().prec = 7
decimal.getcontext().rounding = decimal.ROUND_UP
locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
probe.note("set")
rank = int(os.environ["RANK"])
probe.first_step(
    third=str(decimal.Decimal(1 + rank) / 3), day=time.strftime("%H", time.gmtime(0)), hour=time.localtime(0).tm_hour
)
