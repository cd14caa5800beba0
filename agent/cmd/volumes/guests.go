package main

import (
	"encoding/json"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"space/agent/fuse"
	"space/agent/volume"
)

// order is what the worker asks for on the control listener, one for each
// connection. With "attach" comes a descriptor: the connection to the guest.
type order struct {
	Do string `json:"do"` // attach or detach
	VM string `json:"vm"` // whose mounts
}

type answer struct {
	Error string `json:"error,omitempty"`
}

// guests are the connections of guests that have the volume mounted.
type guests struct {
	tree  *volume.Tree
	locks *fuse.Locks

	mu    sync.Mutex
	conns map[net.Conn]string // to the VM
}

func newGuests(tree *volume.Tree, locks *fuse.Locks) *guests {
	return &guests{tree: tree, locks: locks, conns: map[net.Conn]string{}}
}

func (g *guests) serve(l *net.UnixListener) error {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			said := answer{}
			if err := g.obey(conn); err != nil {
				said.Error = err.Error()
			}
			json.NewEncoder(conn).Encode(said)
		}()
	}
}

func (g *guests) obey(conn *net.UnixConn) error {
	message, rights := make([]byte, 64<<10), make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(message, rights)
	if err != nil {
		return err
	}
	var guest net.Conn
	if oobn > 0 {
		if guest, err = received(rights[:oobn]); err != nil {
			return err
		}
	}
	var wish order
	if err := json.Unmarshal(message[:n], &wish); err != nil {
		return err
	}
	switch wish.Do {
	case "attach":
		if guest == nil {
			return syscall.EBADF
		}
		g.attach(wish.VM, guest)
	case "detach":
		g.detach(wish.VM)
	default:
		return syscall.EINVAL
	}
	return nil
}

func received(rights []byte) (net.Conn, error) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil, syscall.EBADF
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, syscall.EBADF
	}
	file := os.NewFile(uintptr(fds[0]), "guest")
	defer file.Close()
	return net.FileConn(file)
}

func (g *guests) attach(vm string, guest net.Conn) {
	g.mu.Lock()
	g.conns[guest] = vm
	g.mu.Unlock()
	go func() {
		fuse.Serve(guest, g.tree, g.locks)
		guest.Close()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, guest)
	}()
}

// detach ends the connections of a VM.
func (g *guests) detach(vm string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn, whose := range g.conns {
		if whose == vm {
			conn.Close()
			delete(g.conns, conn)
		}
	}
}
