package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func (o Op) String() string { return [...]string{"create", "write", "remove", "rename", "chmod"}[o] }

type world struct {
	*testing.T
	*Watcher
	root string
}

func start(t *testing.T, recursive bool) *world {
	w := &world{T: t, root: t.TempDir()}
	w.mkdir("old/deep")
	w.begin(recursive)
	return w
}

func (w *world) begin(recursive bool) {
	var err error
	if w.Watcher, err = New(w.root, recursive); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(w.Watcher.Close)
}

func (w *world) at(name string) string { return filepath.Join(w.root, name) }

func (w *world) mkdir(name string) { w.must(os.MkdirAll(w.at(name), 0o755)) }

// fill makes a new file with content.
func (w *world) fill(name string) { w.must(os.WriteFile(w.at(name), []byte("x"), 0o644)) }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// saw checks what has happened since the last call: all of it is there at once.
func (w *world) saw(want ...string) {
	w.Helper()
	events, wait, err := w.Take()
	w.must(err)
	if (wait == nil) != (len(events) > 0) {
		w.Fatalf("%d events, and something to wait for: %v", len(events), wait != nil)
	}
	var got []string
	for _, event := range events {
		got = append(got, fmt.Sprint(event.Op, " ", event.Name))
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		w.Errorf("saw %q, not %q", got, want)
	}
}

func TestEachKindOfEvent(t *testing.T) {
	w := start(t, false)
	w.saw()
	file, err := os.OpenFile(w.at("a"), os.O_CREATE|os.O_WRONLY, 0o600)
	w.must(err)
	w.must(file.Chown(0, 0))
	file.WriteString("x")
	file.WriteString("y")
	file.Close()
	w.saw("create a", "chmod a", "write a")
	w.must(os.Chmod(w.at("a"), 0o644))
	w.saw("chmod a")
	w.must(os.Rename(w.at("a"), w.at("b")))
	w.saw("rename a", "create b")
	w.must(os.Remove(w.at("b")))
	w.saw("remove b")
	w.mkdir("dir")
	w.fill("dir/inside")
	w.fill("old/inside")
	w.saw("create dir")
	w.must(os.RemoveAll(w.root))
	w.saw("remove dir", "remove old", "remove .")
}

func TestATreeIsWatchedAsItGrows(t *testing.T) {
	w := start(t, true)
	w.fill("old/deep/a")
	w.saw("create old/deep/a", "write old/deep/a")
	w.mkdir("new")
	w.saw("create new")
	w.fill("new/a")
	w.saw("create new/a", "write new/a")
	// Faster than anybody can look: what was missed is found.
	w.mkdir("p/q/r")
	w.fill("p/q/r/a")
	events := map[string]bool{}
	for all := []string{"create p", "create p/q", "create p/q/r", "create p/q/r/a", "write p/q/r/a"}; len(events) < len(all); {
		taken, wait, err := w.Take()
		w.must(err)
		for _, event := range taken {
			text := fmt.Sprint(event.Op, " ", event.Name)
			if events[text] {
				t.Fatalf("told twice: %s", text)
			}
			events[text] = true
		}
		if wait != nil && len(events) < len(all) {
			t.Fatalf("missing: saw only %v", events)
		}
	}
	w.must(os.RemoveAll(w.at("p")))
	w.saw("remove p/q/r/a", "remove p/q/r", "remove p/q", "remove p")
}

func TestADirectoryThatMoves(t *testing.T) {
	w := start(t, true)
	w.must(os.Rename(w.at("old"), w.at("moved")))
	w.saw("rename old", "create moved")
	w.fill("moved/deep/a")
	w.saw("create moved/deep/a", "write moved/deep/a")
	outside := filepath.Join(t.TempDir(), "out")
	w.must(os.Rename(w.at("moved"), outside))
	w.saw("rename moved")
	w.must(os.WriteFile(filepath.Join(outside, "deep/b"), nil, 0o644))
	w.saw()
	w.must(os.Rename(outside, w.at("back")))
	w.saw("create back")
	w.fill("back/deep/c")
	w.saw("create back/deep/c", "write back/deep/c")
}

func TestWaitingEndsWithAnEventAndWithClosing(t *testing.T) {
	w := start(t, true)
	_, wait, err := w.Take()
	w.must(err)
	go os.WriteFile(w.at("a"), nil, 0o644)
	waitFor(t, wait)
	w.saw("create a")
	_, wait, err = w.Take()
	w.must(err)
	w.Close()
	waitFor(t, wait)
	if _, _, err := w.Take(); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

func waitFor(t *testing.T, what <-chan struct{}) {
	t.Helper()
	select {
	case <-what:
	case <-time.After(30 * time.Second):
		t.Fatal("waited in vain")
	}
}

func TestTooManyEventsAreAnError(t *testing.T) {
	w := start(t, false)
	for i := 0; i <= maxEvents; i += 2 {
		name := w.at(fmt.Sprint("f", i))
		w.must(os.WriteFile(name, nil, 0o644))
		w.must(os.Remove(name))
	}
	w.CatchUp()
	events, _, err := w.Take()
	if err != nil || len(events) > maxEvents {
		t.Fatalf("%d events, %v", len(events), err)
	}
	if _, _, err := w.Take(); !errors.Is(err, ErrOverflow) {
		t.Error(err)
	}
}

func TestWhatIsNoDirectoryIsNotWatched(t *testing.T) {
	for _, path := range []string{"/nonexistent", "/etc/passwd"} {
		if w, err := New(path, true); err == nil {
			w.Close()
			t.Errorf("%s is watched", path)
		}
	}
}

func TestADirectoryThatIsRenamedStaysWatched(t *testing.T) {
	w := start(t, true)
	names := [2]string{"old", "renamed"}
	for i := 0; i < 3000; i++ {
		w.must(os.Rename(w.at(names[i%2]), w.at(names[1-i%2])))
		file := fmt.Sprintf("%s/deep/%d", names[1-i%2], i)
		w.fill(file)
		events, _, err := w.Take()
		w.must(err)
		if !strings.Contains(fmt.Sprint(events), fmt.Sprint(Event{file, Write})) {
			t.Fatalf("move %d: %s is not among %v", i, file, events)
		}
		w.must(os.Remove(w.at(file)))
	}
}
