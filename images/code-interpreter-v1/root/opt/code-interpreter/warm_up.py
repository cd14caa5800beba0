"""What the first kernel does before its template is saved: every sandbox then has it done.

The libraries that nearly all code here begins with are imported, and have shown something once: with an emulated CPU
that is seconds for each. The user's namespace stays empty.
"""

import io
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython import get_ipython

figure, axes = plt.subplots()
axes.plot(np.arange(3.0), label="line")
axes.legend()
figure.savefig(io.BytesIO(), format="png")
plt.close(figure)
pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_html()
try:
    int("no number")
except ValueError:  # how a failure is told takes its time, too, and so the end of a run that is interrupted
    get_ipython().InteractiveTB.structured_traceback(*sys.exc_info())
