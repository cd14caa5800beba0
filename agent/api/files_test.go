package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// folder is a fresh one that every user may enter.
func (a *agent) folder() string {
	dir, err := os.MkdirTemp(os.Getenv(inside), "files-")
	must(err)
	must(os.Chmod(dir, 0o755))
	return dir
}

func at(path string, more ...string) string {
	return "?path=" + url.QueryEscape(path) + strings.Join(more, "")
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestReadFile(t *testing.T) {
	a := newAgent(t)
	path := filepath.Join(a.folder(), "f")
	content := numberedBytes(0, 10000)
	must(os.WriteFile(path, []byte(content), 0o600))
	r := a.do("GET", "/v1/files"+at(path), nil)
	if r.status != 200 || string(r.body) != content || r.header.Get("Content-Length") != "10000" ||
		r.header.Get("Content-Type") != "application/octet-stream" || r.header.Get("Last-Modified") == "" {
		t.Fatal(r.status, r.header)
	}
	etag := r.header.Get("ETag")
	if head := a.do("HEAD", "/v1/files"+at(path), nil); head.status != 200 || len(head.body) != 0 ||
		head.header.Get("Content-Length") != "10000" || head.header.Get("ETag") != etag {
		t.Fatal(head.status, head.header)
	}
	for spec, want := range map[string]string{"bytes=0-7": content[:8], "bytes=9995-": content[9995:], "bytes=-3": content[9997:], "bytes=9999-20000": content[9999:]} {
		if r := a.do("GET", "/v1/files"+at(path), nil, "Range", spec); r.status != 206 || string(r.body) != want || !strings.HasSuffix(r.header.Get("Content-Range"), "/10000") {
			t.Errorf("%s: %v %v", spec, r, r.header)
		}
	}
	if r := a.do("GET", "/v1/files"+at(path), nil, "Range", "bytes=0-0,9999-9999"); r.status != 206 || !strings.HasPrefix(r.header.Get("Content-Type"), "multipart/byteranges") {
		t.Error(r)
	}
	beyond := a.do("GET", "/v1/files"+at(path), nil, "Range", "bytes=10000-")
	a.refused(beyond, 416, "range_not_satisfiable")
	if beyond.header.Get("Content-Range") != "bytes */10000" {
		t.Error(beyond.header)
	}
	if r := a.do("GET", "/v1/files"+at(path), nil, "Range", "bytes=0-1", "If-Range", etag); r.status != 206 {
		t.Error(r.status)
	}
	if r := a.do("GET", "/v1/files"+at(path), nil, "If-None-Match", etag); r.status != 304 || len(r.body) != 0 {
		t.Error(r.status)
	}
	a.refused(a.do("GET", "/v1/files"+at(path), nil, "If-Match", `"other"`), 412, "precondition_failed")
	// Changed in place, same size: the old range must not be mixed with the new content.
	must(os.WriteFile(path, []byte(strings.ToUpper(content)), 0o600))
	if r := a.do("GET", "/v1/files"+at(path), nil, "Range", "bytes=0-1", "If-Range", etag); r.status != 200 {
		t.Error(r.status)
	}
	empty := filepath.Join(a.folder(), "empty")
	must(os.WriteFile(empty, nil, 0o600))
	if r := a.do("GET", "/v1/files"+at(empty), nil); r.status != 200 || r.header.Get("Content-Length") != "0" {
		t.Error(r.header)
	}
}

func TestReadWhatIsNoPlainFile(t *testing.T) {
	a := newAgent(t)
	dir := a.folder()
	must(syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	must(os.Symlink("loop", filepath.Join(dir, "loop")))
	must(os.Symlink("/etc/group", filepath.Join(dir, "link")))
	a.refused(a.do("GET", "/v1/files"+at(dir), nil), 409, "is_a_directory")
	a.refused(a.do("GET", "/v1/files"+at(dir+"/no"), nil), 404, "no_such_file")
	a.refused(a.do("GET", "/v1/files"+at("/etc/passwd/no"), nil), 404, "no_such_file")
	a.refused(a.do("GET", "/v1/files"+at(dir+"/fifo"), nil), 422, "not_a_regular_file")
	a.refused(a.do("GET", "/v1/files"+at("/dev/zero"), nil), 422, "not_a_regular_file")
	a.refused(a.do("GET", "/v1/files"+at(dir+"/loop"), nil), 422, "invalid_path")
	if r := a.do("GET", "/v1/files"+at(dir+"/link"), nil); string(r.body) != read(t, "/etc/group") {
		t.Error(r)
	}
	if r := a.do("GET", "/v1/files"+at("/proc/sys/kernel/ostype"), nil); r.status != 200 || string(r.body) != "Linux\n" {
		t.Error(r)
	}
	if r := a.do("GET", "/v1/files"+at("/sys/kernel/mm/transparent_hugepage/enabled"), nil); r.status == 200 && !strings.Contains(string(r.body), "[") {
		t.Error(r)
	}
	if r := a.do("HEAD", "/v1/files"+at("/proc/cpuinfo"), nil); r.status != 200 || r.header.Get("Content-Length") != "" {
		t.Error(r.header)
	}
}

func TestPaths(t *testing.T) {
	a := newAgent(t)
	home := filepath.Join(os.Getenv(inside), "home")
	must(os.RemoveAll(home + "/notes"))
	if r := a.do("PUT", "/v1/files?path=notes/a.txt", "hi"); r.status != 201 || r.object()["path"] != home+"/notes/a.txt" {
		t.Fatal(r)
	}
	for _, path := range []string{"notes/a.txt", home + "/notes/../notes/./a.txt", "//" + home + "//notes/a.txt", "../home/notes/a.txt", "/../.." + home + "/notes/a.txt"} {
		if r := a.do("GET", "/v1/files"+at(path), nil); r.status != 200 || string(r.body) != "hi" {
			t.Errorf("%s: %v", path, r)
		}
	}
	if r := a.do("PUT", "/v1/files?path=space-agent-test&user=root", "x"); r.object()["path"] != "/root/space-agent-test" || r.object()["user"] != "root" {
		t.Error(r)
	}
	os.Remove("/root/space-agent-test")
	long := "/tmp/" + strings.Repeat("a/", 3000)
	for _, path := range []string{"", "a\x00b", "/tmp/" + strings.Repeat("x", 256), long} {
		for _, request := range [][2]string{{"GET", "/v1/files"}, {"HEAD", "/v1/files"}, {"PUT", "/v1/files"}, {"DELETE", "/v1/files"},
			{"GET", "/v1/files/stat"}, {"GET", "/v1/files/list"}, {"POST", "/v1/files/mkdir"}} {
			r := a.do(request[0], request[1]+at(path), nil)
			if request[0] == "HEAD" {
				if r.status != 422 {
					t.Errorf("HEAD %q: %v", path, r)
				}
				continue
			}
			a.refused(r, 422, "invalid_path")
		}
	}
	a.refused(a.do("GET", "/v1/files", nil), 422, "invalid_path")
	a.refused(a.do("GET", "/v1/files?path=x&user=ghost", nil), 422, "no_such_user")
	a.refused(a.do("GET", "/v1/files?path=%", nil), 400, "bad_request")
}

func TestWriteFile(t *testing.T) {
	a := newAgent(t)
	dir := a.folder()
	path := dir + "/new/deep/f.bin"
	r := a.do("PUT", "/v1/files"+at(path), "first")
	info := r.object()
	for key, want := range map[string]any{"name": "f.bin", "path": path, "type": "file", "size_bytes": 5.0, "mode": "0644",
		"permissions": "-rw-r--r--", "user": "user", "group": "user", "symlink_target": nil} {
		if info[key] != want {
			t.Errorf("%s: %v, want %v", key, info[key], want)
		}
	}
	if r.status != 201 || read(t, path) != "first" {
		t.Fatal(r)
	}
	if stat := a.do("GET", "/v1/files/stat"+at(dir+"/new"), nil).object(); stat["user"] != "user" || stat["mode"] != "0755" || stat["type"] != "directory" {
		t.Error(stat)
	}
	// An existing file keeps what it has, unless told otherwise.
	must(os.Chown(path, 1001, 1600))
	must(os.Chmod(path, 0o751))
	r = a.do("PUT", "/v1/files"+at(path, "&user=root"), "second")
	if info := r.object(); r.status != 200 || info["mode"] != "0751" || info["user"] != "homeless" || info["group"] != "wheel" || read(t, path) != "second" {
		t.Error(r)
	}
	if info := a.do("PUT", "/v1/files"+at(path, "&mode=4700"), "third").object(); info["mode"] != "4700" || info["permissions"] != "-rws------" {
		t.Error(info)
	}
	for _, mode := range []string{"9", "0888", "77777", "-1", "rw"} {
		a.refused(a.do("PUT", "/v1/files"+at(path, "&mode="+mode), "x"), 422, "invalid_argument")
	}
	// Through a symlink, which stays one; also one that leads to nothing yet.
	must(os.Symlink("f.bin", dir+"/new/deep/link"))
	must(os.Symlink("../fresh", dir+"/new/deep/dangling"))
	must(os.Symlink(dir+"/new/deep", dir+"/short"))
	if a.do("PUT", "/v1/files"+at(dir+"/short/link"), "linked"); read(t, path) != "linked" {
		t.Error("not written through the link")
	}
	if a.do("PUT", "/v1/files"+at(dir+"/short/dangling"), "fresh"); read(t, dir+"/new/fresh") != "fresh" {
		t.Error("not written through the dangling link")
	}
	if target, err := os.Readlink(dir + "/new/deep/link"); err != nil || target != "f.bin" {
		t.Error("the link is gone")
	}
	a.refused(a.do("PUT", "/v1/files"+at(dir+"/new"), "x"), 409, "is_a_directory")
	a.refused(a.do("PUT", "/v1/files"+at("/"), "x"), 409, "is_a_directory")
	a.refused(a.do("PUT", "/v1/files"+at(path+"/below"), "x"), 409, "not_a_directory")
	must(syscall.Mkfifo(dir+"/fifo", 0o666))
	a.refused(a.do("PUT", "/v1/files"+at(dir+"/fifo"), "x"), 422, "not_a_regular_file")
	a.refused(a.do("PUT", "/v1/files"+at(path), "x", "Content-Range", "bytes 0-0/10"), 400, "bad_request")
	a.noTemps(dir)
}

// noTemps checks that no unfinished upload was left behind.
func (a *agent) noTemps(dir string) {
	a.Helper()
	filepath.Walk(dir, func(path string, _ os.FileInfo, _ error) error {
		if strings.HasSuffix(path, ".tmp") {
			a.Errorf("left behind: %s", path)
		}
		return nil
	})
}

func TestReplacingIsAtomic(t *testing.T) {
	a := newAgent(t)
	path := a.folder() + "/f"
	versions := []string{strings.Repeat("a", 300_000), strings.Repeat("b", 200_000)}
	a.do("PUT", "/v1/files"+at(path), versions[0])
	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Add(1)
	go func() {
		defer wait.Done()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				a.do("PUT", "/v1/files"+at(path), versions[i%2])
			}
		}
	}()
	for i := 0; i < 300; i++ {
		if got := read(t, path); got != versions[0] && got != versions[1] {
			t.Fatalf("a mixture of %d bytes", len(got))
		}
	}
	close(stop)
	wait.Wait()
}

func TestBrokenUploadChangesNothing(t *testing.T) {
	a := newAgent(t)
	dir := a.folder()
	must(os.WriteFile(dir+"/old", []byte("old"), 0o644))
	for _, name := range []string{"old", "new"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
		must(err)
		fmt.Fprintf(conn, "PUT /v1/files%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n%s", at(dir+"/"+name), strings.Repeat("x", 500_000))
		a.eventually("the upload is under way", func() bool {
			temps, _ := filepath.Glob(dir + "/.space-*")
			return len(temps) == 1
		})
		conn.(*net.TCPConn).CloseWrite()
		answer, _ := io.ReadAll(conn)
		if !strings.Contains(string(answer), "body_incomplete") {
			t.Errorf("%s", answer)
		}
		conn.Close()
		a.eventually("the rest is removed", func() bool {
			temps, _ := filepath.Glob(dir + "/.space-*")
			return len(temps) == 0
		})
	}
	if read(t, dir+"/old") != "old" {
		t.Error("the old file was touched")
	}
	if _, err := os.Stat(dir + "/new"); err == nil {
		t.Error("half a file appeared")
	}
}

func TestDiskFull(t *testing.T) {
	a := newAgent(t)
	dir := a.folder()
	must(syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	must(os.WriteFile(dir+"/old", []byte("old"), 0o644))
	a.refused(a.do("PUT", "/v1/files"+at(dir+"/old"), strings.Repeat("x", 2<<20)), 507, "disk_full")
	a.refused(a.do("PUT", "/v1/files"+at(dir+"/new"), strings.Repeat("x", 2<<20)), 507, "disk_full")
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 || read(t, dir+"/old") != "old" {
		t.Errorf("%v", entries)
	}
	if r := a.do("PUT", "/v1/files"+at(dir+"/new"), strings.Repeat("x", 500_000)); r.status != 201 {
		t.Error("the room was not given back:", r)
	}
	// A full disk must not keep what is moved there from being moved back.
	outside := a.folder() + "/big"
	must(os.WriteFile(outside, make([]byte, 2<<20), 0o600))
	a.refused(a.do("POST", "/v1/files/move", map[string]any{"from": outside, "to": dir + "/big"}), 507, "disk_full")
	if info, err := os.Stat(outside); err != nil || info.Size() != 2<<20 {
		t.Error("the source is gone")
	}
	a.noTemps(dir)
	must(syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	a.refused(a.do("PUT", "/v1/files"+at(dir+"/old"), "x"), 403, "read_only")
	a.refused(a.do("DELETE", "/v1/files"+at(dir+"/old"), nil), 403, "read_only")
	a.refused(a.do("DELETE", "/v1/files"+at(dir), nil), 409, "busy")
}

// pattern is size bytes that are cheap to make and to check.
type pattern struct{ left int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	if int64(len(b)) > p.left {
		b = b[:p.left]
	}
	for i := range b {
		b[i] = byte(i)
	}
	p.left -= int64(len(b))
	return len(b), nil
}

func TestBigFileNeedsNoMemory(t *testing.T) {
	a := newAgent(t)
	const size = 256 << 20
	dir := a.folder()
	defer os.RemoveAll(dir)
	var peak uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if m.HeapAlloc > peak {
				peak = m.HeapAlloc
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	sum := sha256.New()
	if r := a.do("PUT", "/v1/files"+at(dir+"/big"), io.TeeReader(&pattern{size}, sum)); r.status != 201 || r.object()["size_bytes"] != float64(size) {
		t.Fatal(r)
	}
	want := hex.EncodeToString(sum.Sum(nil))
	response := a.request("GET", "/v1/files"+at(dir+"/big"), nil)
	sum.Reset()
	if n, err := io.Copy(sum, response.Body); n != size || err != nil {
		t.Fatal(n, err)
	}
	response.Body.Close()
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		t.Error("the content differs")
	}
	close(stop)
	<-stopped
	if peak > 64<<20 {
		t.Errorf("the heap grew to %d MiB for a file of %d MiB", peak>>20, size>>20)
	}
}

func TestDeleteFile(t *testing.T) {
	a := newAgent(t)
	dir := a.folder()
	a.do("PUT", "/v1/files"+at(dir+"/d/e/f"), "x")
	must(os.Symlink("/etc", dir+"/d/etc"))
	a.refused(a.do("DELETE", "/v1/files"+at(dir+"/d"), nil), 409, "directory_not_empty")
	a.refused(a.do("DELETE", "/v1/files"+at(dir+"/d", "&recursive=perhaps"), nil), 422, "invalid_argument")
	a.refused(a.do("DELETE", "/v1/files"+at(dir+"/no", "&recursive=true"), nil), 404, "no_such_file")
	for _, root := range []string{"/", "/etc/..", "//"} {
		a.refused(a.do("DELETE", "/v1/files"+at(root, "&recursive=true"), nil), 422, "invalid_argument")
	}
	if r := a.do("DELETE", "/v1/files"+at(dir+"/d/e/f"), nil); r.status != 204 {
		t.Fatal(r)
	}
	if r := a.do("DELETE", "/v1/files"+at(dir+"/d/e"), nil); r.status != 204 {
		t.Fatal(r)
	}
	if r := a.do("DELETE", "/v1/files"+at(dir+"/d", "&recursive=true"), nil); r.status != 204 {
		t.Fatal(r)
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Fatal("a symlink was followed")
	}
	a.refused(a.do("DELETE", "/v1/files"+at(dir+"/d"), nil), 404, "no_such_file")
}

func TestStatAndList(t *testing.T) {
	a := newAgent(t)
	dir := a.folder()
	for _, name := range []string{"b/2", "b/1/x", "a", "c"} {
		a.do("PUT", "/v1/files"+at(dir+"/"+name), "12345")
	}
	must(os.Symlink("/etc", dir+"/link"))
	must(syscall.Mkfifo(dir+"/pipe", 0o600))
	must(os.Chmod(dir+"/c", 0o604|os.ModeSticky))
	names := func(query string) (names []string, truncated bool) {
		r := a.do("GET", "/v1/files/list"+query, nil)
		if r.status != 200 {
			t.Fatal(r)
		}
		for _, entry := range r.object()["entries"].([]any) {
			path := entry.(map[string]any)["path"].(string)
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return names, r.object()["truncated"].(bool)
	}
	if got, _ := names(at(dir)); strings.Join(got, " ") != "a b c link pipe" {
		t.Error(got)
	}
	if got, _ := names(at(dir, "&depth=2")); strings.Join(got, " ") != "a b b/1 b/2 c link pipe" {
		t.Error(got)
	}
	if got, _ := names(at(dir, "&depth=64")); strings.Join(got, " ") != "a b b/1 b/1/x b/2 c link pipe" {
		t.Error(got)
	}
	for path, want := range map[string][4]any{"/link": {"symlink", "/etc", "lrwxrwxrwx", "0777"}, "/pipe": {"other", nil, "prw-------", "0600"},
		"/c": {"file", nil, "-rw----r-T", "1604"}, "/b": {"directory", nil, "drwxr-xr-x", "0755"}} {
		info := a.do("GET", "/v1/files/stat"+at(dir+path), nil).object()
		if info["type"] != want[0] || info["symlink_target"] != want[1] || info["permissions"] != want[2] || info["mode"] != want[3] {
			t.Errorf("%s: %v", path, info)
		}
		if _, err := time.Parse(time.RFC3339Nano, info["modified_at"].(string)); err != nil {
			t.Error(err)
		}
	}
	if info := a.do("GET", "/v1/files/stat"+at("/"), nil).object(); info["name"] != "/" || info["path"] != "/" {
		t.Error(info)
	}
	a.refused(a.do("GET", "/v1/files/list"+at(dir+"/a"), nil), 409, "not_a_directory")
	a.refused(a.do("GET", "/v1/files/list"+at(dir+"/no"), nil), 404, "no_such_file")
	a.refused(a.do("GET", "/v1/files/stat"+at(dir+"/no"), nil), 404, "no_such_file")
	for _, depth := range []string{"0", "-1", "65", "x"} {
		a.refused(a.do("GET", "/v1/files/list"+at(dir, "&depth="+depth), nil), 422, "invalid_argument")
	}
	empty := a.do("GET", "/v1/files/list"+at(a.folder()), nil)
	if !bytes.Contains(empty.body, []byte(`"entries":[]`)) {
		t.Error(empty)
	}
	many := a.folder()
	must(syscall.Mount("tmpfs", many, "tmpfs", 0, ""))
	defer syscall.Unmount(many, syscall.MNT_DETACH)
	for i := 0; i < 10000; i++ {
		file, err := os.Create(fmt.Sprintf("%s/%05d", many, i))
		must(err)
		file.Close()
	}
	if got, truncated := names(at(many)); len(got) != 10000 || truncated {
		t.Error(len(got), truncated)
	}
	must(os.WriteFile(many+"/one-more", nil, 0o644))
	if got, truncated := names(at(many)); len(got) != 10000 || !truncated {
		t.Error(len(got), truncated)
	}
}

func TestMakeDir(t *testing.T) {
	a := newAgent(t)
	dir := a.folder()
	r := a.do("POST", "/v1/files/mkdir"+at(dir+"/a/b", "&mode=0700"), nil)
	if info := r.object(); r.status != 201 || info["mode"] != "0700" || info["user"] != "user" || info["type"] != "directory" {
		t.Fatal(r)
	}
	if info := a.do("GET", "/v1/files/stat"+at(dir+"/a"), nil).object(); info["mode"] != "0755" || info["user"] != "user" {
		t.Error(info)
	}
	if r := a.do("POST", "/v1/files/mkdir"+at(dir+"/a/b", "&mode=0777"), nil); r.status != 200 || r.object()["mode"] != "0700" {
		t.Error(r)
	}
	must(os.WriteFile(dir+"/f", nil, 0o644))
	must(os.Symlink("nowhere", dir+"/dangling"))
	a.refused(a.do("POST", "/v1/files/mkdir"+at(dir+"/f"), nil), 409, "already_exists")
	a.refused(a.do("POST", "/v1/files/mkdir"+at(dir+"/dangling"), nil), 409, "already_exists")
	a.refused(a.do("POST", "/v1/files/mkdir"+at(dir+"/f/g"), nil), 409, "not_a_directory")
	var wait sync.WaitGroup
	for i := 0; i < 10; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if r := a.do("POST", "/v1/files/mkdir"+at(dir+"/race/to/it"), nil); r.status != 201 && r.status != 200 {
				t.Error(r)
			}
		}()
	}
	wait.Wait()
}

func TestMove(t *testing.T) {
	a := newAgent(t)
	dir := a.folder()
	move := func(from, to string, overwrite bool) reply {
		return a.do("POST", "/v1/files/move", map[string]any{"from": dir + from, "to": dir + to, "overwrite": overwrite})
	}
	must(os.WriteFile(dir+"/a", []byte("a"), 0o640))
	must(os.WriteFile(dir+"/b", []byte("b"), 0o640))
	if r := move("/a", "/new/a", false); r.status != 200 || r.object()["path"] != dir+"/new/a" || read(t, dir+"/new/a") != "a" {
		t.Fatal(r)
	}
	a.refused(move("/new/a", "/b", false), 409, "already_exists")
	if r := move("/new/a", "/b", true); r.status != 200 || read(t, dir+"/b") != "a" {
		t.Fatal(r)
	}
	must(os.MkdirAll(dir+"/d/sub", 0o755))
	a.refused(move("/no", "/x", false), 404, "no_such_file")
	a.refused(move("/d", "/d/sub/x", false), 422, "invalid_argument")
	a.refused(move("/b", "/d", true), 409, "is_a_directory")
	a.refused(move("/new", "/b", true), 409, "not_a_directory")
	a.refused(move("/new", "/d", true), 409, "directory_not_empty")
	a.refused(a.do("POST", "/v1/files/move", map[string]any{"from": "/", "to": dir + "/x"}), 422, "invalid_argument")
	a.refused(a.do("POST", "/v1/files/move", map[string]any{"from": dir + "/b"}), 422, "invalid_path")
	a.refused(a.do("POST", "/v1/files/move", "x"), 400, "bad_request")
}

func TestMoveBetweenFileSystems(t *testing.T) {
	a := newAgent(t)
	dir, other := a.folder(), a.folder()
	must(syscall.Mount("tmpfs", other, "tmpfs", 0, "size=8m"))
	defer syscall.Unmount(other, syscall.MNT_DETACH)
	must(os.MkdirAll(dir+"/tree/sub", 0o750))
	must(os.WriteFile(dir+"/tree/sub/f", []byte("content"), 0o640))
	must(os.Chown(dir+"/tree/sub/f", 1000, 1500))
	must(syscall.Chmod(dir+"/tree/sub/f", 0o4750))
	when := time.Unix(1_600_000_000, 123_000_000)
	must(os.Chtimes(dir+"/tree/sub/f", when, when))
	must(os.Symlink("sub/f", dir+"/tree/link"))
	must(os.WriteFile(other+"/taken", []byte("taken"), 0o644))
	move := func(from, to string, overwrite bool) reply {
		return a.do("POST", "/v1/files/move", map[string]any{"from": from, "to": to, "overwrite": overwrite})
	}
	a.refused(move(dir+"/tree/sub/f", other+"/taken", false), 409, "already_exists")
	if read(t, other+"/taken") != "taken" {
		t.Error("the target was touched")
	}
	if r := move(dir+"/tree", other+"/deep/tree", false); r.status != 200 || r.object()["mode"] != "0750" {
		t.Fatal(r)
	}
	info, err := os.Stat(other + "/deep/tree/sub/f")
	must(err)
	stat := info.Sys().(*syscall.Stat_t)
	if read(t, other+"/deep/tree/link") != "content" || stat.Mode&0o7777 != 0o4750 || stat.Uid != 1000 || stat.Gid != 1500 || !info.ModTime().Equal(when) {
		t.Errorf("%o %d %d %v", stat.Mode, stat.Uid, stat.Gid, info.ModTime())
	}
	if _, err := os.Lstat(dir + "/tree"); err == nil {
		t.Error("the source is still there")
	}
	must(os.MkdirAll(dir+"/odd", 0o755))
	must(syscall.Mkfifo(dir+"/odd/fifo", 0o600))
	a.refused(move(dir+"/odd", other+"/odd", false), 422, "not_a_regular_file")
	if _, err := os.Lstat(dir + "/odd/fifo"); err != nil {
		t.Error("the source is gone")
	}
	a.noTemps(other)
}
