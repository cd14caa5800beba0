"""E2B's quick start: run a command and use files. `pip install e2b`

Set E2B_API_KEY, and for SPACE: E2B_API_URL and E2B_SANDBOX_URL.
"""

from e2b import Sandbox

with Sandbox.create() as sandbox:
    result = sandbox.commands.run('echo "Hello from a sandbox"')
    print(result.stdout)

    sandbox.files.write("/home/user/hello.txt", "Hello, World!")
    print(sandbox.files.read("/home/user/hello.txt"))
    for entry in sandbox.files.list("/home/user"):
        print(entry.type, entry.path)
