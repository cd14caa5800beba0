package fuse

import (
	"errors"
	"syscall"

	"space/agent/volume"
)

const (
	// maxKnown bounds what a kernel may remember of the volume: its inodes.
	maxKnown = 500_000
	// maxOpen bounds the descriptors for what is merely known. One that is closed
	// is opened again by its name.
	maxOpen = 2048
	// maxPinned bounds the files that a guest has open.
	maxPinned = 16_384
	maxDepth  = 4096
)

// place is where a known entry was seen last.
type place struct {
	parent uint64
	name   string
	times  uint64 // how often the kernel was told of it, as it counts
	pins   int    // how often it is open
	node   *volume.Node
}

// nodes are the entries that a guest's kernel knows. It calls them by their inode
// numbers, which outlive a connection and are never used for another entry.
// Folders stay open here for a while; a file does only while the guest has it
// open, so that nothing keeps the room of what another guest has deleted.
type nodes struct {
	tree    *volume.Tree
	known   map[uint64]*place
	current map[uint64]*volume.Node // files opened for the message that is being answered
	open    int
	pinned  int
}

func newNodes(tree *volume.Tree) *nodes {
	return &nodes{tree: tree, known: map[uint64]*place{}, current: map[uint64]*volume.Node{}}
}

// done closes what was opened for one message.
func (n *nodes) done() {
	for id, node := range n.current {
		node.Close()
		delete(n.current, id)
	}
}

// get opens an entry the kernel knows; it belongs to the table. ESTALE is what
// makes a kernel look a path up again.
func (n *nodes) get(id uint64) (*volume.Node, error) { return n.find(id, 0) }

func (n *nodes) find(id uint64, depth int) (*volume.Node, error) {
	if id == rootID {
		return n.tree.Root(), nil
	}
	at := n.known[id]
	if at == nil || depth > maxDepth {
		return nil, syscall.ESTALE
	}
	if at.node != nil {
		return at.node, nil
	}
	if node := n.current[id]; node != nil {
		return node, nil
	}
	dir, err := n.find(at.parent, depth+1)
	if err != nil {
		return nil, err
	}
	node, err := dir.Lookup(at.name)
	if err != nil {
		return nil, syscall.ESTALE
	}
	if node.Ino() != id {
		node.Close()
		return nil, syscall.ESTALE
	}
	n.keep(at, node)
	return node, nil
}

// keep makes a node the table's, and closes some others where there are many.
func (n *nodes) keep(at *place, node *volume.Node) {
	if !node.IsDir() {
		if before := n.current[node.Ino()]; before != nil {
			before.Close()
		}
		n.current[node.Ino()] = node
		return
	}
	n.release(at)
	at.node = node
	n.open++
	if n.open-n.pinned <= maxOpen {
		return
	}
	for _, other := range n.known {
		if other.node != nil && other.pins == 0 && other != at {
			n.release(other)
			if n.open-n.pinned <= maxOpen/2 {
				return
			}
		}
	}
}

func (n *nodes) release(at *place) {
	if at.node != nil {
		at.node.Close()
		at.node = nil
		n.open--
	}
}

// tell puts an entry into the table, since the kernel is about to be told of it.
// The node is the table's from then on.
func (n *nodes) tell(parent uint64, name string, node *volume.Node) error {
	at := n.known[node.Ino()]
	if at == nil {
		if len(n.known) >= maxKnown {
			node.Close()
			return syscall.ENFILE
		}
		at = &place{}
		n.known[node.Ino()] = at
	}
	at.parent, at.name = parent, name
	at.times++
	if at.pins > 0 {
		node.Close() // the open one stays
		return nil
	}
	n.keep(at, node)
	return nil
}

func (n *nodes) forget(id, times uint64) {
	at := n.known[id]
	if at == nil {
		return
	}
	if at.times > times {
		at.times -= times
		return
	}
	at.times = 0
	if at.pins == 0 {
		n.release(at)
		delete(n.known, id)
	}
}

func (n *nodes) forgetAll() {
	for id, at := range n.known {
		n.release(at)
		delete(n.known, id)
	}
}

// pin keeps an entry open until unpin.
func (n *nodes) pin(id uint64) error {
	if _, err := n.get(id); err != nil || id == rootID {
		return err
	}
	if n.pinned >= maxPinned {
		return syscall.ENFILE
	}
	at := n.known[id]
	if at.pins == 0 {
		n.pinned++
	}
	at.pins++
	if at.node == nil {
		at.node = n.current[id].Hold()
		n.open++
	}
	return nil
}

func (n *nodes) unpin(id uint64) {
	at := n.known[id]
	if at == nil || at.pins == 0 {
		return
	}
	at.pins--
	if at.pins == 0 {
		n.pinned--
		if at.times == 0 || !at.node.IsDir() {
			n.release(at)
		}
		if at.times == 0 {
			delete(n.known, id)
		}
	}
}

// moved tells a known entry its new place.
func (n *nodes) moved(id, parent uint64, name string) {
	if at := n.known[id]; at != nil {
		at.parent, at.name = parent, name
	}
}

// remember reads what the agent says a kernel knows from before: for each entry
// its number, its folder's, how often it was told, and its name. What has another
// place by now is stale to that kernel, until it looks for it by its path.
func (n *nodes) remember(in *reader) error {
	for len(in.left) > 0 {
		id, parent, times := in.u64(), in.u64(), in.u64()
		name := string(in.take(int(in.u16())))
		if in.bad || len(n.known) >= maxKnown {
			return errors.New("a table of known entries that cannot be")
		}
		n.known[id] = &place{parent: parent, name: name, times: times}
	}
	return nil
}
