// Package mount mounts volumes. The kernel's requests (FUSE) go over a connection
// that the worker made to a volume's server, and come back on it.
//
// A mount lives longer than its connection. This machine may be suspended, copied
// and continued elsewhere, or the server may be started anew: programs then wait,
// and go on when the worker has made the next connection. For that the agent
// knows what the kernel knows (which folders and files, by which numbers), tells
// the next server, and sends again what was not answered.
package mount

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"space/agent/fault"
)

// Volume is one that is mounted, and where.
type Volume struct {
	ID   string `json:"volume"`
	Path string `json:"path"`
}

// Table is the volumes that are mounted, by path.
type Table struct {
	mu     sync.Mutex
	mounts map[string]*relay
}

// New returns an empty table.
func New() *Table { return &Table{mounts: map[string]*relay{}} }

// Attach mounts a volume where it is not yet, and has its requests go over conn
// from now on. The connection is the mount's, unless there is an error.
func (t *Table) Attach(v Volume, conn func() (net.Conn, error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.mounts[v.Path]
	if at != nil && (at.id != v.ID || at.ended()) {
		t.drop(v.Path)
		at = nil
	}
	if at == nil {
		made, err := open(v)
		if err != nil {
			return err
		}
		at = made
		t.mounts[v.Path] = at
	}
	next, err := conn()
	if err != nil {
		return err
	}
	defer next.Close() // the relay has its own
	return at.attach(next)
}

// Keep unmounts all but these; programs that have files of the others open get errors.
func (t *Table) Keep(volumes []Volume) {
	kept := map[Volume]bool{}
	for _, v := range volumes {
		kept[v] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for path, at := range t.mounts {
		if !kept[Volume{at.id, path}] {
			t.drop(path)
		}
	}
}

func open(v Volume) (*relay, error) {
	if err := os.MkdirAll(v.Path, 0o755); err != nil {
		return nil, fault.New(409, "volume_not_mounted", "no volume can be mounted at %s: %v", v.Path, err).Because(err)
	}
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.New(409, "volumes_unsupported", "the kernel of this template cannot mount volumes; build the template again").Because(err)
	}
	defer syscall.Close(fd)
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read=%d", fd, maxData)
	if err := syscall.Mount("volume", v.Path, "fuse.volume", syscall.MS_NOSUID|syscall.MS_NODEV, data); err != nil {
		return nil, fault.New(409, "volume_not_mounted", "no volume can be mounted at %s: %v", v.Path, err).Because(err)
	}
	made, err := startRelay(v.ID, fd)
	if err != nil {
		unmount(v.Path)
		return nil, fault.New(409, "volume_not_mounted", "the sandbox has no room for another process: %v", err).Because(err)
	}
	return made, nil
}

// drop unmounts a volume; its relay ends with that.
func (t *Table) drop(path string) {
	unmount(path)
	t.mounts[path].orders.Close()
	delete(t.mounts, path)
}

func unmount(path string) {
	const force, detach = 1, 2
	syscall.Unmount(path, force|detach)
}
