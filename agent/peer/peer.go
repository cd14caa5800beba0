// Package peer knows the connection that a request came by, and notices when
// its client leaves.
package peer

import (
	"context"
	"net"
	"syscall"
	"time"
	"unsafe"
)

type connKey struct{}

// Keep puts the connection into the context of its requests.
func Keep(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// CancelWhenLeft calls cancel when the client closes its connection. The
// server itself notices that only while it reads; a handler that is held up
// with part of the body unread asks the kernel instead. If so much is waiting
// that the client's end cannot get through, its kernel gives up in a few minutes.
func CancelWhenLeft(ctx context.Context, cancel context.CancelFunc) {
	conn, ok := ctx.Value(connKey{}).(syscall.Conn)
	if !ok {
		return
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			gone := false
			if raw.Control(func(fd uintptr) { gone = left(int(fd)) }) != nil || gone {
				cancel()
				return
			}
		}
	}
}

// left looks at the first byte of struct tcp_info, the state. A client that
// merely shuts down its sending side looks the same; HTTP clients do not.
func left(fd int) bool {
	const established = 1
	var info [4]byte
	size := uint32(len(info))
	_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	return errno == 0 && info[0] != established
}
