package accounts

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"space/agent/fault"
)

func install(t *testing.T, passwd, group string) {
	dir := t.TempDir()
	oldPasswd, oldGroup := passwdPath, groupPath
	t.Cleanup(func() { passwdPath, groupPath = oldPasswd, oldGroup })
	passwdPath, groupPath = filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	for path, content := range map[string]string{passwdPath: passwd, groupPath: group} {
		if content != "" {
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestResolve(t *testing.T) {
	install(t, "# comment\n\nbroken line\nroot:x:0:0:root:/root:/bin/bash\nuser:x:1000:1001:,,,:/home/user:/bin/zsh\n"+
		"bare:x:5:6:::\nbig:x:99999999999:1::/:/bin/sh\n1000:x:7:7::/seven:/bin/sh\n", "")
	for name, want := range map[string]User{
		"":     {"user", 1000, 1001, "/home/user", "/bin/zsh"},
		"root": {"root", 0, 0, "/root", "/bin/bash"},
		"0":    {"root", 0, 0, "/root", "/bin/bash"},
		"bare": {"bare", 5, 6, "/", "/bin/sh"},
		"5":    {"bare", 5, 6, "/", "/bin/sh"},
		"1000": {"1000", 7, 7, "/seven", "/bin/sh"}, // a name goes before a number
	} {
		if got, err := Resolve(name); err != nil || got != want {
			t.Errorf("%q: %+v %v", name, got, err)
		}
	}
	for _, name := range []string{"ghost", "big", "# comment", "4", "user ", "-1"} {
		if _, err := Resolve(name); err == nil || fault.From(err).Code != "no_such_user" {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestImagesWithLittleInThem(t *testing.T) {
	install(t, "admin:x:0:0::/admin:/bin/ash\n", "")
	if got, err := Resolve(""); err != nil || got.Name != "admin" {
		t.Errorf("without the default user: %+v %v", got, err)
	}
	if _, err := Resolve("user"); err == nil {
		t.Error("asked for by name, the default user must exist")
	}
	install(t, "", "")
	for _, name := range []string{"", "root", "0"} {
		if got, err := Resolve(name); err != nil || got.UID != 0 || got.Home != "/root" {
			t.Errorf("without /etc/passwd: %+v %v", got, err)
		}
	}
}

func TestGroups(t *testing.T) {
	install(t, "", "a:x:1:user\nb:x:2:other,user\nc:x:3:users,use\nd:x:4:\nown:x:1001:user\nbroken:x:y:user\n")
	if got := (User{Name: "user", GID: 1001}).Groups(); !reflect.DeepEqual(got, []uint32{1001, 1, 2}) {
		t.Error(got)
	}
	names := ReadNames()
	if names.Group(2) != "b" || names.Group(77) != "77" || names.User(5) != "5" {
		t.Error("names are wrong")
	}
}
