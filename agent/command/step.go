package command

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// StepMode is the first argument of an agent that is only a step on the way to a
// command: directory, program and the program's arguments follow.
const StepMode = "step"

// self is this program, also where its file has no name any more.
const self = "/proc/self/exe"

// throughStep lets a command begin that touches a file system which other programs
// serve (FUSE): volumes, for one. Between fork and exec this program stands still
// (CLONE_VFORK), and who serves may need it; so the child executes this program
// first, which then goes there by itself.
func (l *launch) throughStep() {
	program := l.path
	if !filepath.IsAbs(program) {
		program = filepath.Join(l.dir, program)
	}
	if !served(l.dir) && !served(program) {
		return
	}
	l.argv = append([]string{"agent", StepMode, l.dir, l.path}, l.argv...)
	l.path, l.dir = self, "/"
}

func served(path string) bool {
	const fuse = 0x65735546
	var found syscall.Statfs_t
	return syscall.Statfs(path, &found) == nil && int64(found.Type) == fuse
}

// Step becomes the command; it returns only to say why it could not.
func Step(arguments []string) int {
	if len(arguments) < 3 {
		return 125
	}
	dir, program := arguments[0], arguments[1]
	err := os.Chdir(dir)
	if err == nil {
		err = syscall.Exec(program, arguments[2:], os.Environ())
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	if os.IsNotExist(err) {
		return 127
	}
	return 126
}
