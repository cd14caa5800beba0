package api

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// put uploads a file and returns what the answer says of it.
func (a *agent) put(path, content string, header ...string) map[string]any {
	a.Helper()
	r := a.do("POST", "/files?path="+url.QueryEscape(path), content, append([]string{"Content-Type", "application/octet-stream"}, header...)...)
	var files []map[string]any
	if r.status != 200 || json.Unmarshal(r.body, &files) != nil || len(files) != 1 {
		a.Fatal(r)
	}
	return files[0]
}

func owner(path string) string {
	info, err := os.Stat(path)
	must(err)
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d %o", stat.Uid, stat.Gid, info.Mode().Perm())
}

func (a *agent) home() string { return filepath.Join(os.Getenv(inside), "home") }

func TestUploadAndDownload(t *testing.T) {
	a := newAgent(t)
	name := "up/" + filepath.Base(t.TempDir()) + "/a b.txt"
	path := filepath.Join(a.home(), name)
	if got := a.put(name, "hello"); got["path"] != path || got["name"] != "a b.txt" || got["type"] != "file" {
		t.Fatal(got)
	}
	if got := owner(path) + ", " + owner(filepath.Dir(path)); got != "1000:1000 644, 1000:1000 755" {
		t.Error(got)
	}
	r := a.do("GET", "/files?path="+url.QueryEscape(name), nil, "Accept-Encoding", "identity")
	if string(r.body) != "hello" || r.header.Get("Content-Disposition") != `inline; filename="a b.txt"` || r.header.Get("Content-Length") != "5" {
		t.Error(r, r.header)
	}
	if r := a.do("GET", "/files?path="+url.QueryEscape(name), nil, "Range", "bytes=1-2"); r.status != 206 || string(r.body) != "el" {
		t.Error(r)
	}
	a.rejected(a.do("GET", "/files?path="+url.QueryEscape(name), nil, "Range", "bytes=9-"), 416)
	if r := a.do("GET", "/files?path="+url.QueryEscape(name), nil, "If-None-Match", r.header.Get("ETag")); r.status != 304 {
		t.Error(r)
	}
	// Written in place: the same file, now another's.
	before, err := os.Stat(path)
	must(err)
	r = a.do("POST", "/files?username=root&path="+url.QueryEscape(path), "new", "Content-Type", "application/octet-stream")
	after, err := os.Stat(path)
	must(err)
	if content, _ := os.ReadFile(path); r.status != 200 || string(content) != "new" || !os.SameFile(before, after) || owner(path) != "0:0 644" {
		t.Error(r, owner(path))
	}
	if r := a.do("GET", "/files?path=/proc/self/status", nil, "Accept-Encoding", "identity"); !strings.Contains(string(r.body), "Pid:") {
		t.Error("a file of /proc has no content")
	}
}

func TestFilesRefusals(t *testing.T) {
	a := newAgent(t)
	home := a.home()
	for query, want := range map[string]string{
		"path=none":                     "404 path '" + home + "/none' does not exist",
		"path=/etc/passwd/none":         "404 path '/etc/passwd/none' does not exist",
		"path=/tmp":                     "400 path '/tmp' is a directory",
		"":                              "400 path '" + home + "' is a directory",
		"path=/dev/null":                "400 path '/dev/null' is a device, pipe or socket",
		"path=/etc/passwd&username=who": "401 invalid username: 'who'",
		"path=~who/x":                   "400 ~who/x: cannot expand user-specific home dir",
	} {
		r := a.do("GET", "/files?"+query, nil)
		if got := fmt.Sprint(r.status, " ", r.object()["message"]); got != want {
			t.Errorf("%s: %s", query, got)
		}
	}
	octets := []string{"Content-Type", "application/octet-stream"}
	a.rejected(a.do("POST", "/files?path=/tmp", "x", octets...), 400)
	a.rejected(a.do("POST", "/files", "x", octets...), 400)
	a.rejected(a.do("POST", "/files?path=/etc/passwd/x", "x", octets...), 400)
	a.rejected(a.do("POST", "/files?path=/tmp/x", "x", "Content-Type", "text/plain"), 400)
	a.rejected(a.do("POST", "/files?path=/tmp/x", "x", append(octets, "Content-Encoding", "br")...), 400)
	broken := filepath.Join(t.TempDir(), "broken")
	a.rejected(a.do("POST", "/files?path="+broken, "not gzip", append(octets, "Content-Encoding", "gzip")...), 400)
	packed := pack("hello hello")
	packed[len(packed)-6] ^= 1 // the checksum
	a.rejected(a.do("POST", "/files?path="+broken, bytes.NewReader(packed), append(octets, "Content-Encoding", "gzip")...), 400)
	if _, err := os.Stat(broken); err == nil {
		t.Error("a broken upload left a file")
	}
}

func pack(text string) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write([]byte(text))
	w.Close()
	return out.Bytes()
}

func TestFilesTravelCompressed(t *testing.T) {
	a := newAgent(t)
	path := filepath.Join(t.TempDir(), "a.txt")
	long := strings.Repeat("hello ", 10000)
	a.put(path, string(pack(long)), "Content-Encoding", "gzip")
	if content, _ := os.ReadFile(path); string(content) != long {
		t.Fatalf("%d bytes", len(content))
	}
	get := func(header ...string) reply { return a.do("GET", "/files?path="+path, nil, header...) }
	r := get("Accept-Encoding", "br, gzip;q=0.8, deflate")
	unpacker, err := gzip.NewReader(bytes.NewReader(r.body))
	must(err)
	content, err := io.ReadAll(unpacker)
	if err != nil || string(content) != long || r.header.Get("Content-Encoding") != "gzip" || r.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Error(err, len(content), r.header)
	}
	for _, header := range [][]string{{"Accept-Encoding", "identity"}, {"Accept-Encoding", "gzip;q=0"}, {"Accept-Encoding", "gzip;q=0.1, identity"},
		{"Accept-Encoding", "*;q=0.5"}, {"Accept-Encoding", "gzip", "Range", "bytes=0-"}} {
		if r := get(header...); string(r.body) != long || r.header.Get("Content-Encoding") != "" {
			t.Error(header, r.header)
		}
	}
	a.rejected(get("Accept-Encoding", "identity;q=0"), 406)
	a.rejected(get("Accept-Encoding", "gzip;q=x"), 400)
}

// form is a multipart body with a part for each file.
func form(files ...string) (body *bytes.Buffer, contentType string) {
	body = &bytes.Buffer{}
	w := multipart.NewWriter(body)
	w.WriteField("note", "ignored")
	for i := 0; i < len(files); i += 2 {
		head := textproto.MIMEHeader{}
		head.Set("Content-Disposition", `form-data; name="file"; filename="`+files[i]+`"`)
		part, err := w.CreatePart(head)
		must(err)
		part.Write([]byte(files[i+1]))
	}
	w.Close()
	return body, w.FormDataContentType()
}

func TestManyFilesInOneUpload(t *testing.T) {
	a := newAgent(t)
	dir := t.TempDir()
	body, kind := form(dir+"/a", "1", dir+"/sub/b", "2", "relative.txt", "3")
	r := a.do("POST", "/files", body, "Content-Type", kind)
	var files []struct{ Path, Name string }
	must(json.Unmarshal(r.body, &files))
	if r.status != 200 || fmt.Sprint(files) != fmt.Sprintf("[{%s/a a} {%s/sub/b b} {%s/relative.txt relative.txt}]", dir, dir, a.home()) {
		t.Fatal(r)
	}
	for path, want := range map[string]string{dir + "/a": "1", dir + "/sub/b": "2", a.home() + "/relative.txt": "3"} {
		if content, _ := os.ReadFile(path); string(content) != want {
			t.Errorf("%s: %q", path, content)
		}
	}
	body, kind = form("ignored", "4")
	if r := a.do("POST", "/files?path="+dir+"/a", body, "Content-Type", kind); r.status != 200 {
		t.Fatal(r)
	}
	if content, _ := os.ReadFile(dir + "/a"); string(content) != "4" {
		t.Errorf("%q", content)
	}
	body, kind = form(dir+"/c", "5", dir+"/./c", "6")
	a.rejected(a.do("POST", "/files", body, "Content-Type", kind), 400)
	if content, _ := os.ReadFile(dir + "/c"); string(content) != "5" {
		t.Errorf("%q", content)
	}
	body, kind = form("", "7")
	a.rejected(a.do("POST", "/files", body, "Content-Type", kind), 400)
	a.rejected(a.do("POST", "/files", "--x\r\nbroken", "Content-Type", "multipart/form-data; boundary=x"), 400)
}

func TestMetadataStaysOnAFile(t *testing.T) {
	a := newAgent(t)
	path := filepath.Join(a.home(), "noted-"+filepath.Base(t.TempDir()))
	must(os.WriteFile(path, nil, 0o644))
	if err := syscall.Setxattr(path, "user.e2b.old", []byte("1"), 0); err != nil {
		t.Skip("no extended attributes here: ", err)
	}
	must(syscall.Setxattr(path, "user.other", []byte("1"), 0))
	if got := a.put(path, "x", "X-Metadata-Author", "me", "X-Metadata-Long-Key", "a b"); fmt.Sprint(got["metadata"]) != "map[author:me long-key:a b]" {
		t.Error(got)
	}
	info := a.call("", "filesystem.Filesystem/Stat", map[string]any{"path": path}).object()["entry"].(map[string]any)
	if fmt.Sprint(info["metadata"]) != "map[author:me long-key:a b]" {
		t.Error(info)
	}
	a.put(path, "x")
	info = a.call("", "filesystem.Filesystem/Stat", map[string]any{"path": path}).object()["entry"].(map[string]any)
	if info["metadata"] != nil {
		t.Error(info)
	}
	if n, err := syscall.Getxattr(path, "user.other", make([]byte, 9)); n != 1 || err != nil {
		t.Error("an attribute of somebody else is gone", err)
	}
	octets := []string{"Content-Type", "application/octet-stream"}
	a.rejected(a.do("POST", "/files?path="+path, "x", append(octets, "X-Metadata-"+strings.Repeat("k", 300), "v")...), 400)
	a.rejected(a.do("POST", "/files?path="+path, "x", append(octets, "X-Metadata-Key", "\xc3\xa9")...), 400)
	a.rejected(a.do("POST", "/files?path="+path, "x", append(octets, "X-Metadata-Key", strings.Repeat("v", 60000))...), 400)
}

func TestComposeJoinsFiles(t *testing.T) {
	a := newAgent(t)
	dir := t.TempDir()
	a.put(dir+"/1", "one ")
	a.put(dir+"/2", "")
	a.put(dir+"/3", "three")
	compose := func(destination string, sources ...string) reply {
		return a.do("POST", "/files/compose", map[string]any{"source_paths": sources, "destination": destination})
	}
	a.rejected(compose(dir+"/all", dir+"/1", dir+"/none"), 404)
	a.rejected(compose(dir+"/all", dir), 400)
	a.rejected(compose(dir+"/1", dir+"/1"), 400)
	a.rejected(compose("", dir+"/1"), 400)
	a.rejected(compose(dir+"/all"), 400)
	r := compose(dir+"/new/all", dir+"/1", dir+"/2", dir+"/3")
	content, _ := os.ReadFile(dir + "/new/all")
	if r.status != 200 || r.object()["path"] != dir+"/new/all" || string(content) != "one three" || owner(dir+"/new/all") != "1000:1000 644" {
		t.Error(r, string(content))
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Error(left)
	}
}

// sign makes a link's query as the SDKs do.
func sign(path, operation, user, token, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	query := url.Values{"path": {path}}
	if user != "" {
		query.Set("username", user)
	}
	if expiration != "" {
		text += ":" + expiration
		query.Set("signature_expiration", expiration)
	}
	sum := sha256.Sum256([]byte(text))
	query.Set("signature", "v1_"+strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "="))
	return "/files?" + query.Encode()
}

func TestSignedLinksAdmitToOneFile(t *testing.T) {
	a := newAgent(t)
	a.init(map[string]any{"access_token": "secret"})
	path := filepath.Join(t.TempDir(), "a")
	a.put(path, "hello")
	a.token = ""
	later := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	for _, link := range []string{sign(path, "read", "", "secret", ""), sign(path, "read", "root", "secret", ""), sign(path, "read", "", "secret", later)} {
		if r := a.do("GET", link, nil); string(r.body) != "hello" {
			t.Error(r)
		}
	}
	octets := []string{"Content-Type", "application/octet-stream"}
	if r := a.do("POST", sign(path, "write", "", "secret", ""), "changed", octets...); r.status != 200 {
		t.Error(r)
	}
	for link, want := range map[string]string{
		sign(path, "read", "", "secret", "1"):                                      "signature is already expired",
		sign(path, "read", "", "other", ""):                                        "invalid signature",
		sign(path, "write", "", "secret", ""):                                      "invalid signature",
		sign(path, "read", "", "secret", "") + "&username=root":                    "invalid signature",
		sign(path, "read", "", "secret", later) + "0":                              "invalid signature",
		strings.Replace(sign(path, "read", "", "secret", ""), "%2Fa&", "%2Fb&", 1): "invalid signature",
		"/files?path=" + path + "&signature=":                                      "invalid signature",
		"/files?path=" + path:                                                      "missing signature query parameter",
	} {
		if r := a.do("GET", link, nil); string(r.body) != `{"code":401,"message":"`+want+`"}` {
			t.Errorf("%s: %v", link, r)
		}
	}
	// A wrong token is not made good by a signature.
	a.rejected(a.do("GET", sign(path, "read", "", "secret", ""), nil, "X-Access-Token", "wrong"), 401)
	a.rejected(a.do("GET", "/metrics"+strings.TrimPrefix(sign(path, "read", "", "secret", ""), "/files"), nil), 401)
}

func TestUploadOntoAFullDisk(t *testing.T) {
	a := newAgent(t)
	dir := t.TempDir()
	must(syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	r := a.do("POST", "/files?path="+dir+"/big", strings.Repeat("x", 3<<20), "Content-Type", "application/octet-stream")
	if detail := a.rejected(r, 507); detail != "attempted to write 3145728 bytes: not enough disk space available" {
		t.Error(detail)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Error("the rest of a file stays:", left)
	}
}
