"""Interface of users' models of workers, which the simulator runs in virtual time, and `run` in a worker process.

All names are those of `flowdist.worker.model`.
"""

from flowdist.worker.model import Context as Context
from flowdist.worker.model import Folder as Folder
from flowdist.worker.model import RealContext as RealContext
from flowdist.worker.model import Store as Store
from flowdist.worker.model import alone as alone
from flowdist.worker.model import check_data as check_data
from flowdist.worker.model import check_name as check_name
from flowdist.worker.model import run as run
from flowdist.worker.model import steps_done as steps_done
from flowdist.worker.model import stream_of as stream_of
from flowdist.worker.model import tell_committed as tell_committed
