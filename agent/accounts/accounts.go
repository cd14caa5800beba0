// Package accounts reads /etc/passwd and /etc/group of the guest. The standard
// library's os/user is not used: it caches the current user across the move to
// another root, and does not tell the shell. The files are read anew each time;
// a user made by the previous command exists for the next one.
package accounts

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"space/agent/defaults"
	"space/agent/fault"
)

// Default is the user of a request that names none, where the image says no
// other. An image without it is used as root.
const Default = "user"

// Variables for the tests.
var (
	passwdPath = "/etc/passwd"
	groupPath  = "/etc/group"
)

// User is an entry of /etc/passwd.
type User struct {
	Name  string
	UID   uint32
	GID   uint32
	Home  string
	Shell string
}

// Resolve finds the user a request means: by name or decimal uid, or the
// default one if name is empty. An unknown name is a fault.
func Resolve(name string) (User, error) {
	if name == "" {
		if user, err := named(defaults.Read().User); err == nil {
			return user, nil
		}
		if user, ok := find(byName(Default)); ok {
			return user, nil
		}
		return root(), nil
	}
	return named(name)
}

func named(name string) (User, error) {
	if user, ok := find(byName(name)); ok {
		return user, nil
	}
	if uid, err := strconv.ParseUint(name, 10, 32); err == nil {
		if user, ok := find(byUID(uint32(uid))); ok {
			return user, nil
		}
	}
	if name == "root" || name == "0" {
		return root(), nil
	}
	return User{}, fault.New(422, "no_such_user",
		"user %q is not in the sandbox's /etc/passwd; leave user out for the default or create it first", name)
}

// root is user 0 even in an image without /etc/passwd.
func root() User {
	if user, ok := find(byUID(0)); ok {
		return user
	}
	return User{Name: "root", Home: "/root", Shell: "/bin/sh"}
}

// Groups returns the ids of the groups that list the user as a member, its
// primary group first.
func (u User) Groups() []uint32 {
	gids := []uint32{u.GID}
	eachLine(groupPath, 4, func(f []string) bool {
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || uint32(gid) == u.GID {
			return true
		}
		for _, member := range strings.Split(f[3], ",") {
			if member == u.Name {
				gids = append(gids, uint32(gid))
				break
			}
		}
		return true
	})
	return gids
}

// GroupID finds a group by name or number; a number need not be in the file.
func GroupID(group string) (id uint32, ok bool) {
	eachLine(groupPath, 3, func(f []string) bool {
		if f[0] != group {
			return true
		}
		n, err := strconv.ParseUint(f[2], 10, 32)
		id, ok = uint32(n), err == nil
		return !ok
	})
	if !ok {
		n, err := strconv.ParseUint(group, 10, 31)
		id, ok = uint32(n), err == nil
	}
	return id, ok
}

// Names maps ids to names, for listings. An id without a name is shown as a number.
type Names struct {
	users, groups map[uint32]string
}

// ReadNames reads both files once.
func ReadNames() *Names {
	return &Names{users: ids(passwdPath), groups: ids(groupPath)}
}

// User names a uid.
func (n *Names) User(uid uint32) string { return nameOr(n.users, uid) }

// Group names a gid.
func (n *Names) Group(gid uint32) string { return nameOr(n.groups, gid) }

func nameOr(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

func ids(path string) map[uint32]string {
	names := map[uint32]string{}
	eachLine(path, 3, func(f []string) bool {
		if id, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			if _, taken := names[uint32(id)]; !taken {
				names[uint32(id)] = f[0]
			}
		}
		return true
	})
	return names
}

func byName(name string) func(User) bool { return func(u User) bool { return u.Name == name } }
func byUID(uid uint32) func(User) bool   { return func(u User) bool { return u.UID == uid } }

func find(match func(User) bool) (found User, ok bool) {
	eachLine(passwdPath, 7, func(f []string) bool {
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			return true
		}
		user := User{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5], Shell: f[6]}
		if user.Home == "" {
			user.Home = "/"
		}
		if user.Shell == "" {
			user.Shell = "/bin/sh" // passwd(5)
		}
		if match(user) {
			found, ok = user, true
			return false
		}
		return true
	})
	return found, ok
}

// eachLine calls f with the fields of each line that has at least n, until it
// returns false. A missing file has no lines.
func eachLine(path string, n int, f func(fields []string) bool) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) >= n && fields[0] != "" && fields[0][0] != '#' && !f(fields) {
			return
		}
	}
}
