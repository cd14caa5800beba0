package envd

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"space/agent/accounts"
	"space/agent/connect"
	"space/agent/watch"
)

// maxWatchers bounds the watchers that clients poll and may have forgotten. The
// kernel has 128 for each user, and programs in the sandbox want some.
const maxWatchers = 64

// watchers are all that watch now.
type watchers struct {
	mu     sync.Mutex
	all    map[*watch.Watcher]bool
	polled map[string]*polled
}

// polled is a watcher whose client asks from time to time.
type polled struct {
	*watch.Watcher
	root         string
	includeEntry bool
}

func newWatchers() *watchers {
	return &watchers{all: map[*watch.Watcher]bool{}, polled: map[string]*polled{}}
}

// catchUp makes every watcher see what the agent itself has just done: the
// caller's next request may be within a directory that it made.
func (s *watchers) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		w.CatchUp()
	}
}

func (s *watchers) open(root string, recursive bool) (*watch.Watcher, error) {
	w, err := watch.New(root, recursive)
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOSPC):
		return nil, connect.Errorf(connect.ResourceExhausted,
			"the sandbox's kernel allows no more watches (%v); see /proc/sys/fs/inotify", err)
	case errors.Is(err, syscall.ENOENT):
		return nil, lookupError(err, root)
	case err != nil:
		return nil, connect.Errorf(connect.Internal, "cannot watch %s: %v", root, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[w] = true
	return w, nil
}

func (s *watchers) close(w *watch.Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
	w.Close()
}

func (s *watchers) get(id string) (*polled, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.polled[id]; w != nil {
		return w, nil
	}
	return nil, connect.Errorf(connect.NotFound, "watcher with id %s not found", id)
}

// networks are the file systems whose changes by others the kernel does not
// see. From <linux/magic.h>.
var networks = map[int64]bool{
	0x6969: true, 0xff534d42: true, 0x517b: true, 0xfe534d42: true, // nfs, cifs, smb, smb2
	0x65735546: true, // fuse
}

// watched is the directory that a request is about.
func watched(r *http.Request, q *watchRequest) (string, error) {
	_, path, err := placeOf(r, q.Path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", lookupError(err, path)
	}
	if !info.IsDir() {
		return "", connect.Errorf(connect.InvalidArgument, "path %s not a directory", path)
	}
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err == nil && networks[int64(stat.Type)] && !q.AllowNetworkMounts {
		return "", connect.Errorf(connect.InvalidArgument, "cannot watch path on network filesystem: %s", path)
	}
	return path, nil
}

func (h *Handler) watchDir(r *http.Request, q *watchRequest, out *connect.Stream) error {
	root, err := watched(r, q)
	if err != nil {
		return err
	}
	w, err := h.watchers.open(root, q.Recursive)
	if err != nil {
		return err
	}
	defer h.watchers.close(w)
	if err := out.Send(watchMessage{Start: &empty{}}); err != nil {
		return err
	}
	out.Flush()
	keepalive := time.NewTicker(keepaliveOf(r))
	defer keepalive.Stop()
	for {
		events, more, err := w.Take()
		if err != nil {
			return watchFailure(err)
		}
		for _, event := range eventMessages(root, events, q.IncludeEntry) {
			if err := out.Send(watchMessage{Filesystem: &event}); err != nil {
				return err
			}
			keepalive.Reset(keepaliveOf(r))
		}
		out.Flush()
		if more == nil {
			continue
		}
		select {
		case <-more:
		case <-keepalive.C:
			if err := out.Send(watchMessage{Keepalive: &empty{}}); err != nil {
				return err
			}
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

func watchFailure(err error) error {
	if errors.Is(err, watch.ErrOverflow) {
		return connect.Errorf(connect.DataLoss, "%v; watch again", err)
	}
	return connect.Errorf(connect.Internal, "watcher error: %v", err)
}

// eventTypes are the events' names, by watch.Op.
var eventTypes = [...]string{
	watch.Create: "EVENT_TYPE_CREATE", watch.Write: "EVENT_TYPE_WRITE", watch.Remove: "EVENT_TYPE_REMOVE",
	watch.Rename: "EVENT_TYPE_RENAME", watch.Chmod: "EVENT_TYPE_CHMOD",
}

// eventMessages describes events and, if asked for, what is there now.
func eventMessages(root string, events []watch.Event, includeEntry bool) []filesystemEvent {
	messages := make([]filesystemEvent, len(events))
	var names *accounts.Names
	if includeEntry && len(events) > 0 {
		names = accounts.ReadNames()
	}
	for i, event := range events {
		messages[i] = filesystemEvent{Name: event.Name, Type: eventTypes[event.Op]}
		if includeEntry && event.Op != watch.Remove && event.Op != watch.Rename {
			if e, err := entryAt(filepath.Join(root, event.Name), names); err == nil {
				messages[i].Entry = &e
			}
		}
	}
	return messages
}

func (h *Handler) createWatcher(r *http.Request, q *watchRequest) (*watcherRequest, error) {
	root, err := watched(r, q)
	if err != nil {
		return nil, err
	}
	w, err := h.watchers.open(root, q.Recursive)
	if err != nil {
		return nil, err
	}
	id := newWatcherID()
	h.watchers.mu.Lock()
	full := len(h.watchers.polled) >= maxWatchers
	if !full {
		h.watchers.polled[id] = &polled{w, root, q.IncludeEntry}
	}
	h.watchers.mu.Unlock()
	if full {
		h.watchers.close(w)
		return nil, connect.Errorf(connect.ResourceExhausted, "there are %d watchers; remove one", maxWatchers)
	}
	return &watcherRequest{id}, nil
}

func newWatcherID() string {
	var b [10]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // getrandom(2) does not fail on a Linux we run on
	}
	return "w" + hex.EncodeToString(b[:])
}

// watcherEvents returns what happened since it was asked last: all that did
// before this request came.
func (h *Handler) watcherEvents(_ *http.Request, q *watcherRequest) (*watcherEventList, error) {
	w, err := h.watchers.get(q.WatcherID)
	if err != nil {
		return nil, err
	}
	events, _, err := w.Take()
	if err != nil {
		return nil, watchFailure(err)
	}
	return &watcherEventList{eventMessages(w.root, events, w.includeEntry)}, nil
}

func (h *Handler) removeWatcher(_ *http.Request, q *watcherRequest) (*empty, error) {
	w, err := h.watchers.get(q.WatcherID)
	if err != nil {
		return nil, err
	}
	h.watchers.mu.Lock()
	delete(h.watchers.polled, q.WatcherID)
	h.watchers.mu.Unlock()
	h.watchers.close(w.Watcher)
	return &empty{}, nil
}
