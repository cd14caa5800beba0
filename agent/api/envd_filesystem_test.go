package api

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func (a *agent) filesystem(method string, q map[string]any) reply {
	a.Helper()
	return a.call("", "filesystem.Filesystem/"+method, q)
}

func entryOf(r reply) map[string]any { return r.object()["entry"].(map[string]any) }

func TestStatDescribesEntries(t *testing.T) {
	a := newAgent(t)
	dir := t.TempDir()
	a.put(dir+"/file", "hello")
	must(os.Symlink("file", dir+"/link"))
	must(os.Symlink("nowhere", dir+"/dangling"))
	must(os.Symlink(".", dir+"/loop"))
	for name, want := range map[string]string{
		"file":     "FILE_TYPE_FILE 5 420 -rw-r--r-- user user <nil> <nil>",
		"":         "FILE_TYPE_DIRECTORY 120 493 drwxr-xr-x root root <nil> <nil>",
		"link":     "FILE_TYPE_FILE 4 420 Lrwxrwxrwx root root " + dir + "/file true",
		"dangling": "FILE_TYPE_UNSPECIFIED 7 511 Lrwxrwxrwx root root <nil> true",
		"loop":     "FILE_TYPE_DIRECTORY 1 493 Lrwxrwxrwx root root " + dir + " true",
	} {
		e := entryOf(a.filesystem("Stat", map[string]any{"path": dir + "/" + name}))
		if name == "" {
			e["size"] = "120" // the file system's to say
		}
		got := fmt.Sprint(e["type"], " ", e["size"], " ", e["mode"], " ", e["permissions"], " ", e["owner"], " ", e["group"], " ", e["symlinkTarget"], " ", e["isSymlink"])
		if got != want || e["path"] != strings.TrimSuffix(dir+"/"+name, "/") || !strings.HasSuffix(e["modifiedTime"].(string), "Z") {
			t.Errorf("%s: %v", name, e)
		}
	}
	if detail := a.failed(a.filesystem("Stat", map[string]any{"path": dir + "/none"}), 404, "not_found"); detail != "path '"+dir+"/none' does not exist" {
		t.Error(detail)
	}
	a.failed(a.call("ghost", "filesystem.Filesystem/Stat", map[string]any{"path": "/"}), 401, "unauthenticated")
}

func TestDirectoriesAreMadeListedMovedRemoved(t *testing.T) {
	a := newAgent(t)
	dir := filepath.Join(t.TempDir(), "made")
	if e := entryOf(a.filesystem("MakeDir", map[string]any{"path": dir + "/b/c"})); e["path"] != dir+"/b/c" || e["type"] != "FILE_TYPE_DIRECTORY" || e["owner"] != "user" {
		t.Fatal(e)
	}
	a.failed(a.filesystem("MakeDir", map[string]any{"path": dir + "/b"}), 409, "already_exists")
	a.put(dir+"/b/c/file", "x")
	a.put(dir+"/a", "x")
	a.failed(a.filesystem("MakeDir", map[string]any{"path": dir + "/a"}), 400, "invalid_argument")
	must(os.Symlink(dir, dir+"-link"))
	list := func(path string, depth int) string {
		var names []string
		for _, e := range a.filesystem("ListDir", map[string]any{"path": path, "depth": depth}).object()["entries"].([]any) {
			names = append(names, strings.TrimPrefix(e.(map[string]any)["path"].(string), path))
		}
		return strings.Join(names, " ")
	}
	for depth, want := range map[int]string{0: "/a /b", 1: "/a /b", 2: "/a /b /b/c", 3: "/a /b /b/c /b/c/file", 9: "/a /b /b/c /b/c/file"} {
		for _, path := range []string{dir, dir + "-link"} {
			if got := list(path, depth); got != want {
				t.Errorf("%s, %d deep: %s", path, depth, got)
			}
		}
	}
	if got := string(a.filesystem("ListDir", map[string]any{"path": t.TempDir()}).body); got != `{"entries":[]}` {
		t.Error(got)
	}
	a.failed(a.filesystem("ListDir", map[string]any{"path": dir + "/none"}), 404, "not_found")
	a.failed(a.filesystem("ListDir", map[string]any{"path": dir + "/a"}), 400, "invalid_argument")
	moved := entryOf(a.filesystem("Move", map[string]any{"source": dir + "/b/c/file", "destination": dir + "/new/place"}))
	if moved["path"] != dir+"/new/place" || owner(dir+"/new") != "1000:1000 755" {
		t.Error(moved)
	}
	a.failed(a.filesystem("Move", map[string]any{"source": dir + "/none", "destination": dir + "/x"}), 404, "not_found")
	for i := 0; i < 2; i++ { // what is gone already is as good
		if r := a.filesystem("Remove", map[string]any{"path": dir}); r.status != 200 || string(r.body) != "{}" {
			t.Error(r)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it is still there")
	}
	a.failed(a.filesystem("Remove", map[string]any{"path": "/"}), 400, "invalid_argument")
}

func eventNames(list any) string {
	var names []string
	events, _ := list.([]any)
	for _, event := range events {
		e := event.(map[string]any)
		text := strings.ToLower(strings.TrimPrefix(e["type"].(string), "EVENT_TYPE_")) + " " + e["name"].(string)
		if info, ok := e["entry"].(map[string]any); ok {
			text += "=" + info["name"].(string)
		}
		names = append(names, text)
	}
	return strings.Join(names, ", ")
}

func TestPolledWatcherHasAllEventsAtOnce(t *testing.T) {
	a := newAgent(t)
	dir := t.TempDir()
	id := a.filesystem("CreateWatcher", map[string]any{"path": dir, "recursive": true, "includeEntry": true}).object()["watcherId"]
	events := func() string {
		t.Helper()
		return eventNames(a.filesystem("GetWatcherEvents", map[string]any{"watcherId": id}).object()["events"])
	}
	for i := 0; i < 50; i++ {
		name := fmt.Sprint("f", i)
		a.put(dir+"/"+name, strings.Repeat("x", 300_000))
		if got := events(); got != strings.ReplaceAll("create F=F, chmod F=F, write F=F", "F", name) {
			t.Fatal(got)
		}
	}
	a.put(dir+"/f0", "x")
	if got := events(); got != "write f0=f0, chmod f0=f0, write f0=f0" {
		t.Error(got)
	}
	a.filesystem("Move", map[string]any{"source": dir + "/f0", "destination": dir + "/g"})
	a.filesystem("Remove", map[string]any{"path": dir + "/g"})
	if got := events(); got != "rename f0, create g, remove g" {
		t.Error(got)
	}
	for i := 0; i < 20; i++ {
		a.filesystem("MakeDir", map[string]any{"path": fmt.Sprint(dir, "/d", i)})
		a.put(fmt.Sprint(dir, "/d", i, "/deep/file"), "x")
		want := strings.ReplaceAll("create D=D, chmod D=D, create D/deep=deep, chmod D/deep=deep, create D/deep/file=file, chmod D/deep/file=file, write D/deep/file=file",
			"D=D", fmt.Sprintf("d%d=d%d", i, i))
		if got := events(); got != strings.ReplaceAll(want, "D/", fmt.Sprint("d", i, "/")) {
			t.Fatal(got)
		}
	}
	if r := a.filesystem("RemoveWatcher", map[string]any{"watcherId": id}); r.status != 200 {
		t.Error(r)
	}
	for _, method := range []string{"GetWatcherEvents", "RemoveWatcher"} {
		if detail := a.failed(a.filesystem(method, map[string]any{"watcher_id": id}), 404, "not_found"); detail != fmt.Sprintf("watcher with id %s not found", id) {
			t.Error(detail)
		}
	}
}

func TestWatchersAreBounded(t *testing.T) {
	a := newAgent(t)
	for i := 0; ; i++ {
		r := a.filesystem("CreateWatcher", map[string]any{"path": "/tmp"})
		if r.status != 200 {
			a.failed(r, 429, "resource_exhausted")
			break
		}
		if i > 64 {
			t.Fatal("there is no bound")
		}
		id := r.object()["watcherId"]
		t.Cleanup(func() { a.filesystem("RemoveWatcher", map[string]any{"watcherId": id}) })
	}
}

func TestWatchStreamsEvents(t *testing.T) {
	a := newAgent(t)
	dir := t.TempDir()
	stream := a.openCall("", "filesystem.Filesystem/WatchDir", map[string]any{"path": dir})
	if message, _ := stream.next(); message["start"] == nil {
		t.Fatal(message)
	}
	a.put(dir+"/a", "x")
	for _, want := range []string{"create a", "chmod a", "write a"} {
		message, _ := stream.next()
		if got := eventNames([]any{message["filesystem"]}); got != want {
			t.Error(got)
		}
	}
	stream.body.Close()
	for request, want := range map[string]string{
		`{"path": "` + dir + `/none"}`: "not_found: path '" + dir + "/none' does not exist",
		`{"path": "` + dir + `/a"}`:    "invalid_argument: path " + dir + "/a not a directory",
	} {
		_, failure := a.openCall("", "filesystem.Filesystem/WatchDir", jsonText(request)).event()
		if got := fmt.Sprint(failure["code"], ": ", failure["message"]); got != want {
			t.Error(got)
		}
		path := strings.Split(request, `"`)[3]
		if r := a.filesystem("CreateWatcher", map[string]any{"path": path}); r.status == 200 {
			t.Error(r)
		}
	}
}

// jsonText is a message that is JSON already.
type jsonText string

func (text jsonText) MarshalJSON() ([]byte, error) { return []byte(text), nil }
