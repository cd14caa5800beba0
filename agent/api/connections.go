package api

import (
	"net"
	"sync"
	"syscall"
)

// connections is a listener that knows what it has accepted and not yet closed.
type connections struct {
	net.Listener

	mu   sync.Mutex
	open map[*connection]struct{}
}

type connection struct {
	*net.TCPConn
	of *connections
}

func newConnections(l net.Listener) *connections {
	return &connections{Listener: l, open: map[*connection]struct{}{}}
}

func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	kept := &connection{conn.(*net.TCPConn), c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[kept] = struct{}{}
	return kept, nil
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.TCPConn.Close()
}

// closeAll ends every connection there is, also those that wait to be accepted.
// Without a lingering end: in a copy of this machine the other side is not there
// and would be sent retries for minutes.
func (c *connections) closeAll() {
	c.mu.Lock()
	old := make([]*connection, 0, len(c.open))
	for conn := range c.open {
		old = append(old, conn)
	}
	c.mu.Unlock()
	for _, conn := range old {
		conn.SetLinger(0)
		conn.Close()
	}
	waiting, err := c.Listener.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	waiting.Control(func(fd uintptr) {
		for {
			conn, _, err := syscall.Accept4(int(fd), syscall.SOCK_CLOEXEC)
			if err != nil { // EAGAIN: that was the last
				return
			}
			syscall.SetsockoptLinger(conn, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
			syscall.Close(conn)
		}
	})
}
