package command

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"space/agent/accounts"
	"space/agent/defaults"
	"space/agent/fault"
)

// DefaultPath is the PATH of a command before the sandbox or the request set one.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch is a Spec made concrete on this machine.
type launch struct {
	path string
	argv []string
	env  []string
	dir  string
	user accounts.User
}

// prepare finds user, directory and program. The image's environment and then
// sandboxEnv lie between the base environment and the request's.
func prepare(s *Spec, sandboxEnv map[string]string) (*launch, error) {
	user, err := accounts.Resolve(s.User)
	if err != nil {
		return nil, err
	}
	l, image := &launch{user: user}, defaults.Read()
	if l.dir, err = directory(s.Cwd, image.Workdir, user.Home); err != nil {
		return nil, err
	}
	env := map[string]string{
		"PATH": DefaultPath, "HOME": user.Home, "USER": user.Name, "LOGNAME": user.Name,
		"SHELL": user.Shell, "LANG": "C.UTF-8",
	}
	if s.PTY != nil {
		env["TERM"] = "xterm-256color"
	}
	for _, more := range []map[string]string{image.Env, sandboxEnv, s.Env} {
		for name, value := range more {
			env[name] = value
		}
	}
	for name, value := range env {
		l.env = append(l.env, name+"="+value)
	}
	if s.Args == nil {
		shell, err := loginShell()
		if err != nil {
			return nil, err
		}
		l.path, l.argv = shell, []string{shell, "-lc", s.Cmd}
	} else {
		l.argv = s.Args
		if l.path, err = lookPath(s.Args[0], env["PATH"], l.dir); err != nil {
			return nil, err
		}
	}
	l.throughStep()
	return l, nil
}

// directory is where a command begins: where it asks, else where the image says
// (workdir), else at home. A home that does not exist is replaced by /, as
// login(1) does; a directory somebody asked for is not.
func directory(cwd, workdir, home string) (string, error) {
	dir := cwd
	if cwd == "" {
		if info, err := os.Stat(workdir); workdir != "" && err == nil && info.IsDir() {
			return workdir, nil
		}
		dir = home
	} else if !filepath.IsAbs(cwd) {
		dir = filepath.Join(home, cwd)
	}
	info, err := os.Stat(dir)
	if err == nil && info.IsDir() {
		return dir, nil
	}
	if cwd == "" {
		return "/", nil
	}
	return "", fault.New(http.StatusUnprocessableEntity, "no_such_directory",
		"cwd: %q is not a directory in the sandbox; create it first", dir)
}

func loginShell() (string, error) {
	for _, shell := range []string{"/bin/bash", "/bin/sh"} {
		if executable(shell) {
			return shell, nil
		}
	}
	return "", notFound("the sandbox has neither /bin/bash nor /bin/sh to run cmd; use args")
}

// lookPath finds a program as execvp(3) would, in the child's PATH and directory.
func lookPath(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // the kernel says if it is not there
	}
	for _, place := range filepath.SplitList(path) {
		candidate := filepath.Join(place, name)
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(dir, candidate)
		}
		if executable(candidate) {
			return candidate, nil
		}
	}
	return "", notFound("args: %q is not in PATH (%s)", name, path)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func notFound(detail string, args ...any) *fault.Fault {
	return fault.New(http.StatusUnprocessableEntity, "command_not_found", detail, args...)
}

// startFault explains why the kernel would not start the program.
func startFault(err error, l *launch) error {
	unprocessable := http.StatusUnprocessableEntity
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return notFound("%q, or the interpreter it names, does not exist", l.argv[0]).Because(err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fault.New(unprocessable, "permission_denied",
			"user %q may not execute %q or not enter %q", l.user.Name, l.argv[0], l.dir).Because(err)
	case errors.Is(err, syscall.ENOEXEC):
		return fault.New(unprocessable, "not_executable",
			"%q is neither a program for this machine nor a script with an interpreter line", l.argv[0]).Because(err)
	case errors.Is(err, syscall.E2BIG):
		return fault.Invalid("args", "arguments and environment together are larger than Linux allows; use a file or stdin")
	case exhausted(err):
		return exhaustedFault(err)
	}
	return fault.New(unprocessable, "cannot_start", "%q: %v", l.argv[0], err).Because(err)
}

// stdioFault explains why there is nothing to connect the program to.
func stdioFault(err error) error {
	if exhausted(err) {
		return exhaustedFault(err)
	}
	return fault.New(http.StatusInternalServerError, "no_stdio",
		"the sandbox's /dev lacks what a command is connected to (null, ptmx): %v", err).Because(err)
}

// exhausted covers processes, memory, descriptors and terminals (ENOSPC).
func exhausted(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func exhaustedFault(err error) error {
	return fault.New(http.StatusServiceUnavailable, "out_of_resources",
		"the sandbox has no room for another process (%v); end some and try again", err).Because(err)
}
