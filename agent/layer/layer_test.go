package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"syscall"
	"testing"

	"space/agent/defaults"
	"space/agent/fault"
)

// archive makes a tar of names: "d/" is a folder, "a>b" a symlink, "a=b" a hard
// link, all else a file that holds its own name.
func archive(t *testing.T, names ...string) io.Reader {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, name := range names {
		h := &tar.Header{Name: name, Mode: 0o640, Typeflag: tar.TypeReg, Size: int64(len(name))}
		if from, to, ok := strings.Cut(name, ">"); ok {
			h = &tar.Header{Name: from, Linkname: to, Typeflag: tar.TypeSymlink}
		} else if from, to, ok := strings.Cut(name, "="); ok {
			h = &tar.Header{Name: from, Linkname: to, Typeflag: tar.TypeLink}
		} else if strings.HasSuffix(name, "/") {
			h = &tar.Header{Name: name, Mode: 0o751, Typeflag: tar.TypeDir}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			io.WriteString(w, name)
		}
	}
	w.Close()
	return &buffer
}

func tree(t *testing.T, dir string) (found []string) {
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		if info.IsDir() {
			name += "/"
		}
		found = append(found, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(found)
	return found
}

func TestCopyPutsThingsWhereDockerDoes(t *testing.T) {
	for _, c := range []struct {
		what    string
		source  string
		target  string
		there   []string
		archive []string
		want    []string
	}{
		{"a file to a name", "f", "g", nil, []string{"f"}, []string{"g"}},
		{"a file to a path that is not there", "f", "x/g", nil, []string{"f"}, []string{"x/", "x/g"}},
		{"a file into a folder that is there", "a/f", "d", []string{"d/"}, []string{"a/f"}, []string{"d/", "d/f"}},
		{"a file into a folder, by its slash", "f", "d/", nil, []string{"f"}, []string{"d/", "d/f"}},
		{"a file to where we are", "f", ".", nil, []string{"f"}, []string{"f"}},
		{"a folder's content", "d", "e", nil, []string{"d/", "d/s/", "d/s/f", "d/g"}, []string{"e/", "e/g", "e/s/", "e/s/f"}},
		{"a folder without entries of its own", "d", "e", nil, []string{"d/s/f"}, []string{"e/", "e/s/", "e/s/f"}},
		{"merged with what is there", "d", "e", []string{"e/", "e/s/", "e/s/old"}, []string{"d/", "d/s/", "d/s/f"},
			[]string{"e/", "e/s/", "e/s/f", "e/s/old"}},
		{"all of the context", ".", "e", nil, []string{"a", "b/", "b/c"}, []string{"e/", "e/a", "e/b/", "e/b/c"}},
		{"a pattern is into a folder", "d/*.txt", "e", nil, []string{"d/a.txt"}, []string{"e/", "e/a.txt"}},
		{"a pattern for folders", "d/**", "e", nil, []string{"d/", "d/s/f"}, []string{"e/", "e/s/", "e/s/f"}},
		{"odd names in the archive", "./d/../d", "e", nil, []string{"./d/f", "/d/g", "../d/h"}, []string{"e/", "e/f", "e/g", "e/h"}},
		{"what is not of the source stays out", "d", "e", nil, []string{"d/f", "dd/g", "h"}, []string{"e/", "e/f"}},
		{"a file in place of a link", "f", "g", []string{"g>nowhere"}, []string{"f"}, []string{"g"}},
		{"links", "d", "e", nil, []string{"d/f", "d/l>f", "d/h=d/f"}, []string{"e/", "e/f", "e/h", "e/l"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range c.there {
				path := filepath.Join(dir, name)
				if from, to, ok := strings.Cut(path, ">"); ok {
					os.Symlink(to, from)
				} else if strings.HasSuffix(name, "/") {
					os.Mkdir(path, 0o755)
				} else {
					os.WriteFile(path, nil, 0o644)
				}
			}
			if _, err := Copy(archive(t, c.archive...), CopySpec{Source: c.source, Target: c.target, Workdir: dir}); err != nil {
				t.Fatal(err)
			}
			if got := tree(t, dir); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%q, not %q", got, c.want)
			}
		})
	}
}

func TestCopyGivesOwnerAndMode(t *testing.T) {
	dir := t.TempDir()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.Copy(z, archive(t, "d/", "d/s/", "d/f"))
	z.Close()
	mode := uint32(0o4711)
	for spec, want := range map[*CopySpec]uint32{{Mode: nil}: 0o640, {Mode: &mode}: 0o4711} {
		spec.Source, spec.Target, spec.UID, spec.GID = "d", filepath.Join(dir, "to"), 12, 34
		if _, err := Copy(bytes.NewReader(zipped.Bytes()), *spec); err != nil {
			t.Fatal(err)
		}
		var stat syscall.Stat_t
		syscall.Stat(filepath.Join(dir, "to/f"), &stat)
		if stat.Uid != 12 || stat.Gid != 34 || stat.Mode&0o7777 != want {
			t.Errorf("%d:%d %o", stat.Uid, stat.Gid, stat.Mode)
		}
		syscall.Stat(filepath.Join(dir, "to/s"), &stat)
		if stat.Uid != 12 || spec.Mode == nil && stat.Mode&0o777 != 0o751 {
			t.Errorf("folder %d %o", stat.Uid, stat.Mode)
		}
	}
}

func TestCopyRefusesWhatItCannotDo(t *testing.T) {
	dir := t.TempDir()
	os.Mkdir(filepath.Join(dir, "folder"), 0o755)
	os.WriteFile(filepath.Join(dir, "folder/x"), nil, 0o644)
	for code, c := range map[string]struct {
		body io.Reader
		spec CopySpec
	}{
		"bad_archive":      {strings.NewReader("this is no archive, however long one looks at it" + strings.Repeat(".", 1000)), CopySpec{Source: "f", Target: "g"}},
		"nothing_to_copy":  {archive(t, "other"), CopySpec{Source: "f", Target: "g"}},
		"invalid_argument": {archive(t, "f"), CopySpec{Source: "f"}},
		"already_exists":   {archive(t, "d/folder"), CopySpec{Source: "d", Target: "."}},
	} {
		c.spec.Workdir = dir
		if _, err := Copy(c.body, c.spec); err == nil || fault.From(err).Code != code {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func system(t *testing.T) string {
	dir := t.TempDir()
	oldEtc, oldHome, oldHooks, oldDefaults := etc, home, hookDir, defaults.Path
	t.Cleanup(func() { etc, home, hookDir, defaults.Path = oldEtc, oldHome, oldHooks, oldDefaults })
	etc, home = filepath.Join(dir, "etc"), filepath.Join(dir, "home")
	hookDir, defaults.Path = filepath.Join(etc, "space/hooks"), filepath.Join(etc, "space/defaults.json")
	os.MkdirAll(filepath.Join(etc, "skel"), 0o755)
	os.Mkdir(home, 0o755)
	return dir
}

func contents(t *testing.T, path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func TestAddUser(t *testing.T) {
	system(t)
	os.WriteFile(filepath.Join(etc, "passwd"), []byte("root:x:0:0::/root:/bin/sh"), 0o644) // without an end of line
	os.WriteFile(filepath.Join(etc, "shadow"), []byte("root:*:::::::\n"), 0o640)
	os.WriteFile(filepath.Join(etc, "skel/.profile"), []byte("x"), 0o644)
	user, err := EnsureUser("builder-x", true)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(contents(t, filepath.Join(etc, "passwd")), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[1], "builder-x:x:") {
		t.Errorf("%q", lines)
	}
	for file, want := range map[string]string{"group": "builder-x:x:", "shadow": "builder-x:!:"} {
		if !strings.Contains(contents(t, filepath.Join(etc, file)), want) {
			t.Error(file)
		}
	}
	var stat syscall.Stat_t
	if syscall.Stat(user.Home+"/.profile", &stat); stat.Uid != user.UID {
		t.Errorf("the home's files belong to %d", stat.Uid)
	}
	if _, err := os.Stat(filepath.Join(etc, "sudoers.d")); err == nil {
		t.Error("an image without sudo got a rule for it")
	}
}

func TestAUserThatIsANumber(t *testing.T) {
	system(t)
	user, err := EnsureUser("54321", false)
	if err != nil || user.UID != 54321 || user.Name != "u54321" {
		t.Errorf("%+v %v", user, err)
	}
	if got := contents(t, filepath.Join(etc, "passwd")); !strings.HasPrefix(got, "u54321:x:54321:54321:") {
		t.Errorf("%q", got)
	}
}

func TestSudoWhereTheImageHasIt(t *testing.T) {
	system(t)
	os.Mkdir(filepath.Join(etc, "sudoers.d"), 0o755)
	if _, err := EnsureUser("sudoer-x", true); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, filepath.Join(etc, "sudoers.d/sudoer-x")); got != "sudoer-x ALL=(ALL:ALL) NOPASSWD:ALL\n" {
		t.Errorf("%q", got)
	}
}

func TestNoUserOfAnyName(t *testing.T) {
	system(t)
	for _, who := range []string{"; exit 1", "A", "-x", "a b", "a:b", strings.Repeat("a", 33), "x\ny"} {
		if _, err := EnsureUser(who, false); err == nil {
			t.Errorf("%q", who)
		}
	}
}

func TestFinish(t *testing.T) {
	system(t)
	env := map[string]string{"PATH": "/opt/it's/bin:/bin", "A": "1"}
	d := defaults.Defaults{User: "app", Workdir: "/srv", Env: env}
	if err := Finish(d, "serve --port 1", ""); err != nil {
		t.Fatal(err)
	}
	if got := defaults.Read(); !reflect.DeepEqual(got, d) {
		t.Errorf("%+v", got)
	}
	start := filepath.Join(hookDir, "start")
	if got := contents(t, start); !strings.HasSuffix(got, " -l\nserve --port 1\n") {
		t.Errorf("%q", got)
	}
	if info, err := os.Stat(start); err != nil || info.Mode().Perm() != 0o755 {
		t.Error("nobody can run it")
	}
	if got := contents(t, start+".json"); !strings.Contains(got, `"user":"app"`) || !strings.Contains(got, `"workdir":"/srv"`) {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(filepath.Join(hookDir, "ready")); err == nil {
		t.Error("a hook that nobody asked for")
	}
	if got := contents(t, filepath.Join(etc, profile)); !strings.HasPrefix(got, `PATH='/opt/it'\''s/bin:/bin'`+"\n") {
		t.Errorf("%q", got)
	}
	if err := Finish(defaults.Defaults{Env: map[string]string{"a=b": ""}}, "", ""); err == nil {
		t.Error("a name that is none")
	}
	if err := Finish(defaults.Defaults{}, "", "true"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(etc, profile)); err == nil {
		t.Error("the old PATH is still there")
	}
	if contents(t, start) == "" || contents(t, filepath.Join(hookDir, "ready")) == "" {
		t.Error("both hooks are to be there")
	}
}
