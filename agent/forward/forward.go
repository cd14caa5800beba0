// Package forward lets the world outside reach servers that listen on loopback
// only, as development servers do unless told otherwise: it listens on the
// network card's address in their place and carries the bytes. A server that
// listens for everybody is left alone.
package forward

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// every is how often it is looked whether there are other sockets than before,
	// and everyTime after how many times of that it is looked who listens anyway.
	every     = time.Second
	everyTime = 5
	// dialPatience is how long a server may take to take a connection.
	dialPatience = 5 * time.Second
	// maxPorts and maxConnections bound what this costs.
	maxPorts       = 256
	maxConnections = 1024
)

// Forwarder forwards all there is to forward.
type Forwarder struct {
	card    netip.Addr
	scanner *scanner
	look    chan struct{} // somebody knows that a server is gone

	mu          sync.Mutex
	ports       map[uint16]*port
	connections map[*net.TCPConn]struct{} // the outer ends
}

// port is one that is forwarded.
type port struct {
	*net.TCPListener
	target netip.Addr
}

// New makes a forwarder that listens on the address card.
func New(card netip.Addr) (*Forwarder, error) {
	s, err := newScanner()
	if err != nil {
		return nil, err
	}
	return &Forwarder{
		card: card, scanner: s, look: make(chan struct{}, 1),
		ports: map[uint16]*port{}, connections: map[*net.TCPConn]struct{}{},
	}, nil
}

// Run forwards until stop is closed; nil is for ever. A server is usually found
// within a second, and always within five.
func (f *Forwarder) Run(stop <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for times := 0; ; times++ {
		if f.scanner.changed() || times%everyTime == 0 {
			if f.scanner.scan() == nil { // else the kernel is out of memory: what is forwarded stays
				f.adjust()
			}
		}
		select {
		case <-tick.C:
		case <-f.look:
			times = -1
		case <-stop:
			f.close()
			return
		}
	}
}

func (f *Forwarder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for number, p := range f.ports {
		p.Close()
		delete(f.ports, number)
	}
}

// adjust makes what is forwarded what was found.
func (f *Forwarder) adjust() {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := f.scanner.loopback
	for number, p := range f.ports {
		if target, there := found[number]; !there || target != p.target {
			p.Close()
			delete(f.ports, number)
		}
	}
	for number, target := range found {
		if f.ports[number] != nil || len(f.ports) >= maxPorts || target == f.card {
			continue
		}
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.card, number)))
		if err != nil {
			continue // somebody listens at the card's address, or everywhere
		}
		p := &port{l, target}
		f.ports[number] = p
		go f.serve(p, number)
	}
}

// serve takes connections until the listener is closed.
func (f *Forwarder) serve(p *port, number uint16) {
	for {
		outer, err := p.AcceptTCP()
		if err != nil {
			return
		}
		go f.carry(outer, netip.AddrPortFrom(p.target, number).String())
	}
}

// carry moves bytes both ways until both sides have ended.
func (f *Forwarder) carry(outer *net.TCPConn, target string) {
	if !f.keep(outer) {
		reset(outer)
		return
	}
	defer f.drop(outer)
	conn, err := net.DialTimeout("tcp", target, dialPatience)
	if err != nil {
		reset(outer) // as if nobody listened
		select {
		case f.look <- struct{}{}:
		default:
		}
		return
	}
	inner := conn.(*net.TCPConn)
	defer inner.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		move(inner, outer)
	}()
	move(outer, inner)
	<-done
}

// move copies until from ends, and tells to so. If to is gone, from is told.
func move(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	to.CloseWrite()
}

func reset(conn *net.TCPConn) {
	conn.SetLinger(0)
	conn.Close()
}

func (f *Forwarder) keep(conn *net.TCPConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.connections) >= maxConnections {
		return false
	}
	f.connections[conn] = struct{}{}
	return true
}

func (f *Forwarder) drop(conn *net.TCPConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.connections, conn)
	conn.Close()
}

// Disconnect ends all connections: in a copy of this machine, the other side is
// not there.
func (f *Forwarder) Disconnect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.connections {
		reset(conn)
	}
}
