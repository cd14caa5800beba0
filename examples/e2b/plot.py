"""E2B's quick start of the code interpreter: draw a plot and save it. `pip install e2b-code-interpreter`

Set E2B_API_KEY, and for SPACE: E2B_API_URL and E2B_SANDBOX_URL. The template is built once, with
`space template build code-interpreter-v1`.
"""

import base64
from pathlib import Path

from e2b_code_interpreter import Sandbox

CODE = """
import matplotlib.pyplot as plt

plt.plot([1, 2, 3, 4], [1, 4, 9, 16])
plt.title("Squares")
plt.show()
"""

with Sandbox.create() as sandbox:
    sandbox.run_code("x = 1")
    execution = sandbox.run_code("x += 1; x")
    print("x is", execution.text)

    execution = sandbox.run_code(CODE)
    if execution.error:
        raise SystemExit(execution.error.traceback)
    picture = execution.results[0]
    Path("plot.png").write_bytes(base64.b64decode(picture.png))
    print("plot.png is a", picture.chart.type.value, "chart named", picture.chart.title)
