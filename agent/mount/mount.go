package mount

import (
	"encoding/binary"
	"io"
	"net"
	"sort"
	"sync"
	"syscall"
)

// known is what the kernel calls by a number.
type known struct {
	parent uint64
	name   string
	times  uint64
}

// request is one that the kernel waits for the answer of.
type request struct {
	message   []byte
	interrupt []byte   // the kernel's wish that it be given up; nil for none
	sentOn    net.Conn // nil: not sent
}

// Mount is one mounted volume, in the process that relays for it.
type Mount struct {
	fd   int
	over chan struct{} // closed when it was unmounted

	sending sync.Mutex // held while something is written to a connection

	mu       sync.Mutex
	conn     net.Conn // nil: none; requests wait
	known    map[uint64]*known
	requests map[uint64]*request
}

func newMount(fd int) *Mount {
	m := &Mount{fd: fd, over: make(chan struct{}), known: map[uint64]*known{}, requests: map[uint64]*request{}}
	go m.pull()
	return m
}

// attach changes the connection; nil leaves requests waiting.
func (m *Mount) attach(next net.Conn) {
	m.mu.Lock()
	if m.conn != nil {
		m.conn.Close() // whoever writes to it stops
	}
	m.conn = next
	m.mu.Unlock()
	if next == nil {
		return
	}
	m.sending.Lock()
	defer m.sending.Unlock()
	for _, message := range m.again(next) {
		if _, err := next.Write(message); err != nil {
			break
		}
	}
	go m.push(next)
}

// again returns what a new connection begins with: what the kernel knows, and
// what it waits for, in the order in which it asked.
func (m *Mount) again(next net.Conn) [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	messages := tell(m.known)
	uniques := make([]uint64, 0, len(m.requests))
	for unique := range m.requests {
		uniques = append(uniques, unique)
	}
	sort.Slice(uniques, func(i, j int) bool { return uniques[i] < uniques[j] })
	for _, unique := range uniques {
		waiting := m.requests[unique]
		waiting.sentOn = next
		messages = append(messages, waiting.message)
		if waiting.interrupt != nil {
			messages = append(messages, waiting.interrupt)
		}
	}
	return messages
}

// pull passes on what the kernel asks, until the volume is unmounted.
func (m *Mount) pull() {
	defer close(m.over)
	buffer := make([]byte, bufferBytes)
	for {
		n, err := syscall.Read(m.fd, buffer)
		switch {
		case err == syscall.EINTR || err == syscall.EAGAIN || err == syscall.ENOENT: // ENOENT: given up while we read it
			continue
		case err != nil || n < inHeader:
			return
		}
		message := append([]byte(nil), buffer[:n]...)
		switch binary.LittleEndian.Uint32(message[4:]) {
		case opInit:
			syscall.Write(m.fd, initAnswer(message))
		case opPoll: // at once: Go asks it of each file it opens, and all of a program stands still meanwhile
			syscall.Write(m.fd, refusal(message, syscall.ENOSYS))
		default:
			m.pass(message)
		}
	}
}

func (m *Mount) pass(message []byte) {
	op, unique := binary.LittleEndian.Uint32(message[4:]), binary.LittleEndian.Uint64(message[8:])
	m.mu.Lock()
	var waiting *request
	switch op {
	case opForget, opBatchForget:
		forget(m.known, message)
	case opInterrupt:
		if of := m.requests[binary.LittleEndian.Uint64(message[inHeader:])]; of != nil {
			of.interrupt = message
		}
	default:
		waiting = &request{message: message}
		m.requests[unique] = waiting
	}
	m.mu.Unlock()
	m.sending.Lock()
	defer m.sending.Unlock()
	m.mu.Lock()
	conn := m.conn
	send := conn != nil && (waiting == nil || waiting.sentOn != conn)
	if send && waiting != nil {
		waiting.sentOn = conn
	}
	m.mu.Unlock()
	if send {
		conn.Write(message) // where that fails, it waits for the next connection
	}
}

// push passes on what the server answers, until the connection ends or is changed.
func (m *Mount) push(conn net.Conn) {
	defer conn.Close()
	head := make([]byte, outHeader)
	for {
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		size := binary.LittleEndian.Uint32(head)
		if size < outHeader || size > bufferBytes {
			return
		}
		answer := make([]byte, size)
		copy(answer, head)
		if _, err := io.ReadFull(conn, answer[outHeader:]); err != nil {
			return
		}
		if !m.answered(conn, answer) {
			return
		}
		syscall.Write(m.fd, answer) // fails where the kernel no longer waits
	}
}

// answered notes what an answer tells the kernel. False: the connection is not the mount's any more.
func (m *Mount) answered(conn net.Conn, answer []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != conn {
		return false
	}
	unique := binary.LittleEndian.Uint64(answer[8:])
	waiting := m.requests[unique]
	delete(m.requests, unique)
	if waiting != nil && binary.LittleEndian.Uint32(answer[4:]) == 0 {
		note(m.known, waiting.message, answer)
	}
	return true
}
