package defaults

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func at(t *testing.T) {
	old := Path
	Path = filepath.Join(t.TempDir(), "etc", "defaults.json")
	t.Cleanup(func() { Path = old })
}

func TestWrittenIsRead(t *testing.T) {
	at(t)
	if got := Read(); !reflect.DeepEqual(got, Defaults{}) {
		t.Errorf("an image without the file says something: %+v", got)
	}
	want := Defaults{User: "app", Workdir: "/srv", Env: map[string]string{"A": "1"}}
	if err := Write(want); err != nil {
		t.Fatal(err)
	}
	if got := Read(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestWhatMakesNoSenseSaysNothing(t *testing.T) {
	at(t)
	os.MkdirAll(filepath.Dir(Path), 0o755)
	for _, text := range []string{"", "{", `{"user": 1}`, `{"user":"` + strings.Repeat("a", maxSize) + `"}`} {
		os.WriteFile(Path, []byte(text), 0o644)
		if got := Read(); !reflect.DeepEqual(got, Defaults{}) {
			t.Errorf("%.40q: %+v", text, got)
		}
	}
	os.Remove(Path)
	if err := syscall.Mkfifo(Path, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := Read(); !reflect.DeepEqual(got, Defaults{}) {
		t.Errorf("a pipe: %+v", got)
	}
}

func TestNothingIsWrittenThrough(t *testing.T) {
	at(t)
	os.MkdirAll(filepath.Dir(Path), 0o755)
	other := filepath.Join(t.TempDir(), "other")
	os.Symlink(other, Path)
	if err := Write(Defaults{User: "app"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(other); err == nil {
		t.Error("the file behind a link was written")
	}
	if Read().User != "app" {
		t.Error("it is not there")
	}
}
