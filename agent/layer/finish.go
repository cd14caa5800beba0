package layer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"space/agent/accounts"
	"space/agent/command"
	"space/agent/defaults"
	"space/agent/hook"
)

// profile is read by login shells, which otherwise set their own PATH.
const profile = "profile.d/space-path.sh"

// hookDir is a variable for the tests.
var hookDir = hook.Dir

// MakeWorkdir makes the directory that commands begin in from now on, for user.
func MakeWorkdir(path string, user accounts.User) error {
	return makeFolders(filepath.Clean(path), int(user.UID), int(user.GID))
}

// SetPath makes login shells take path for PATH; "" lets them take their own.
func SetPath(path string) error {
	at := filepath.Join(etc, profile)
	if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
		return explain(err, at)
	}
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return explain(err, at)
	}
	line := "PATH=" + quoted(path) + "\nexport PATH\n"
	return explain(os.WriteFile(at, []byte(line), 0o644), at)
}

// Finish writes what a template starts with: its defaults, and its start and
// ready commands as hooks that are run as its commands are. "" leaves a hook as
// it is in the image.
func Finish(d defaults.Defaults, start, ready string) error {
	if err := command.CheckEnv(d.Env); err != nil {
		return err
	}
	if err := SetPath(d.Env["PATH"]); err != nil {
		return err
	}
	if err := defaults.Write(d); err != nil {
		return explain(err, defaults.Path)
	}
	for name, cmd := range map[string]string{hook.Start: start, hook.Ready: ready} {
		if cmd == "" {
			continue
		}
		if err := writeHook(name, cmd, d); err != nil {
			return explain(err, name)
		}
	}
	return nil
}

func writeHook(name, cmd string, d defaults.Defaults) error {
	shell := "#!/bin/sh -l"
	if _, err := os.Stat("/bin/bash"); err == nil {
		shell = "#!/bin/bash -l"
	}
	how, err := json.Marshal(hook.Manner{User: d.User, Workdir: d.Workdir, Env: d.Env})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(hookDir, 0o755); err != nil {
		return err
	}
	for at, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		name:                  {shell + "\n" + cmd + "\n", 0o755},
		name + hook.MannerExt: {string(how) + "\n", 0o644},
	} {
		at = filepath.Join(hookDir, at)
		os.Remove(at)
		if err := os.WriteFile(at, []byte(file.text), file.mode); err != nil {
			return err
		}
		if err := syscall.Chmod(at, uint32(file.mode)); err != nil { // not less by the umask
			return err
		}
	}
	return nil
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// Furnish gives an image that was made for containers what a machine has:
// folders to mount on, a user to work as, and names for users and groups.
func Furnish() error {
	for path, mode := range map[string]uint32{
		"/tmp": 0o1777, "/var/tmp": 0o1777, "/root": 0o700, "/home": 0o755, "/etc": 0o755, "/run": 0o755, "/var": 0o755,
	} {
		if isFolder(path) {
			continue
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return explain(err, path)
		}
		if err := syscall.Chmod(path, mode); err != nil {
			return explain(err, path)
		}
	}
	for _, file := range []struct{ name, line string }{
		{"passwd", "root:x:0:0:root:/root:/bin/sh\n"}, {"group", "root:x:0:\n"},
	} {
		at := filepath.Join(etc, file.name)
		if info, err := os.Stat(at); err == nil && info.Size() > 0 {
			continue
		}
		if err := os.WriteFile(at, []byte(file.line), 0o644); err != nil {
			return explain(err, at)
		}
	}
	_, err := EnsureUser(accounts.Default, true)
	return err
}
