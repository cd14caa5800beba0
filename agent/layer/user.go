package layer

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"space/agent/accounts"
	"space/agent/fault"
)

// Where accounts are kept. Variables for the tests.
var (
	etc  = "/etc"
	home = "/home"
)

const (
	firstUID = 1000
	lastUID  = 59999
)

// name is what useradd(8) takes on every distribution.
var name = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// EnsureUser makes a user with a group and a home of its own unless there is
// one of this name or number. With sudo it may become root without a password,
// where the image has sudo.
func EnsureUser(who string, sudo bool) (accounts.User, error) {
	user, err := accounts.Resolve(who)
	if err != nil {
		called, id := who, uint64(0)
		if id, err = strconv.ParseUint(who, 10, 31); err == nil {
			called = "u" + strconv.FormatUint(id, 10) // an image that knows its user by number only
		}
		if !name.MatchString(called) {
			return user, fault.Invalid("name", "%q cannot be the name of a user", who)
		}
		if user, err = addUser(called, uint32(id)); err != nil {
			return user, err
		}
	}
	if sudo && user.UID != 0 {
		return user, allowSudo(user.Name)
	}
	return user, nil
}

// addUser adds a user with this id, or for 0 with one that is free. The group
// has the same number, also where it has a name already.
func addUser(who string, id uint32) (accounts.User, error) {
	names := accounts.ReadNames()
	if id == 0 {
		for id = firstUID; id <= lastUID; id++ {
			if names.User(id) == fmt.Sprint(id) && names.Group(id) == fmt.Sprint(id) {
				break
			}
		}
		if id > lastUID {
			return accounts.User{}, fault.New(http.StatusUnprocessableEntity, "no_free_uid", "all user ids are taken")
		}
	}
	shell := "/bin/sh"
	if _, err := os.Stat("/bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	at := filepath.Join(home, who)
	lines := []struct{ file, line string }{
		{"passwd", fmt.Sprintf("%s:x:%d:%d::%s:%s\n", who, id, id, at, shell)},
	}
	if names.Group(id) == fmt.Sprint(id) {
		lines = append(lines, struct{ file, line string }{"group", fmt.Sprintf("%s:x:%d:\n", who, id)})
	}
	if _, err := os.Stat(filepath.Join(etc, "shadow")); err == nil {
		lines = append(lines, struct{ file, line string }{"shadow", who + ":!::0:99999:7:::\n"})
	}
	for _, l := range lines {
		if err := appendLine(filepath.Join(etc, l.file), l.line); err != nil {
			return accounts.User{}, explain(err, filepath.Join(etc, l.file))
		}
	}
	if err := makeFolders(at, int(id), int(id)); err != nil {
		return accounts.User{}, err
	}
	if err := copySkeleton(at, int(id)); err != nil {
		return accounts.User{}, err
	}
	return accounts.User{Name: who, UID: id, GID: id, Home: at, Shell: shell}, nil
}

// appendLine adds a line to a file that may not end with one, or not exist.
func appendLine(path, line string) error {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		line = "\n" + line
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(line)
	if e := file.Close(); err == nil {
		err = e
	}
	return err
}

// copySkeleton copies the plain files that the image has for new homes.
func copySkeleton(home string, id int) error {
	entries, _ := os.ReadDir(filepath.Join(etc, "skel"))
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(etc, "skel", entry.Name()))
		if err != nil {
			return explain(err, entry.Name())
		}
		at := filepath.Join(home, entry.Name())
		if _, err := os.Lstat(at); err == nil {
			continue
		}
		if err := os.WriteFile(at, text, 0o644); err != nil {
			return explain(err, at)
		}
		if err := os.Lchown(at, id, id); err != nil {
			return explain(err, at)
		}
	}
	return nil
}

func allowSudo(who string) error {
	folder := filepath.Join(etc, "sudoers.d")
	if !isFolder(folder) { // the image has no sudo
		return nil
	}
	at := filepath.Join(folder, who)
	if strings.Contains(who, ".") { // sudo ignores files with a dot in their names
		at = filepath.Join(folder, strings.ReplaceAll(who, ".", "-"))
	}
	if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
		return explain(err, at)
	}
	if err := os.WriteFile(at, []byte(who+" ALL=(ALL:ALL) NOPASSWD:ALL\n"), 0o440); err != nil {
		return explain(err, at)
	}
	return explain(syscall.Chmod(at, 0o440), at)
}
