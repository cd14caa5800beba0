package fuse

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"space/agent/volume"
)

// guest is one guest's connection. Its messages are answered one after another,
// so nothing that it has is used twice at once; only who waits for a lock is
// answered later.
type guest struct {
	tree  *volume.Tree
	locks *Locks
	nodes *nodes
	out   writer

	sending sync.Mutex
	stream  io.ReadWriter

	mu      sync.Mutex
	waiting map[uint64]chan struct{} // for locks, by the message's number
}

// Serve answers one guest until its connection ends.
func Serve(stream io.ReadWriter, tree *volume.Tree, locks *Locks) error {
	g := &guest{tree: tree, locks: locks, nodes: newNodes(tree), stream: stream, waiting: map[uint64]chan struct{}{}}
	defer g.leave()
	buffer := make([]byte, maxMessage)
	for {
		if _, err := io.ReadFull(stream, buffer[:inHeader]); err != nil {
			return err
		}
		size := binary.LittleEndian.Uint32(buffer)
		if size < inHeader || size > maxMessage {
			return errors.New("a message of an impossible length")
		}
		if _, err := io.ReadFull(stream, buffer[inHeader:size]); err != nil {
			return err
		}
		in := &reader{left: buffer[4:size]}
		h := header{op: in.u32(), unique: in.u64(), node: in.u64(), uid: in.u32(), gid: in.u32()}
		in.take(8) // process and padding
		err := g.answer(h, in)
		g.nodes.done()
		if err != nil {
			return err
		}
	}
}

func (g *guest) leave() {
	g.mu.Lock()
	for unique, stop := range g.waiting {
		close(stop)
		delete(g.waiting, unique)
	}
	g.mu.Unlock()
	g.locks.drop(g)
	g.nodes.forgetAll()
}

// answer does what a message asks. The error is that of the connection.
func (g *guest) answer(h header, in *reader) error {
	switch h.op {
	case opForget:
		g.nodes.forget(h.node, in.u64())
		return nil
	case opBatchForget:
		count := in.u64() & 0xffffffff
		for ; count > 0 && !in.bad; count-- {
			node, times := in.u64(), in.u64()
			g.nodes.forget(node, times)
		}
		return nil
	case opInterrupt:
		g.interrupt(in.u64())
		return nil
	case opSetlkw:
		return g.waitForLock(h, in)
	case OpKnown:
		return g.nodes.remember(in)
	}
	g.out.begin()
	err := error(syscall.ENOSYS)
	if handle, known := handlers[h.op]; known {
		err = handle(g, h, in)
	}
	return g.send(g.out.end(h.unique, err))
}

func (g *guest) send(message []byte) error {
	g.sending.Lock()
	defer g.sending.Unlock()
	_, err := g.stream.Write(message)
	return err
}

// number is what a guest is told of an error.
func number(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno) && errno != 0:
		return errno
	case errors.Is(err, os.ErrNotExist):
		return syscall.ENOENT
	}
	return syscall.EIO
}
