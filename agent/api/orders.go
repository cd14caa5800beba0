package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"space/agent/orders"
	"space/agent/quiesce"
)

// noDescriptor is how long nobody is accepted where the machine is out of them.
const noDescriptor = 100 * time.Millisecond

// ServeOrders carries out what the peer orders, until the listener is closed.
func (in *Internal) ServeOrders(l net.Listener) error {
	in.orders.Store(int64(l.Addr().(*net.TCPAddr).Port))
	l = peerListener{l, in.peer}
	for {
		conn, err := l.Accept()
		var passing interface{ Temporary() bool }
		switch {
		case err == nil:
			go orders.Serve(conn, in.carry)
		case errors.As(err, &passing) && passing.Temporary():
			time.Sleep(noDescriptor)
		default:
			return err
		}
	}
}

// carry does one order. One by which the guest's memory is going to be saved
// ends its connection, as it does all others that wait for a request: the copy
// would have nobody at their end.
func (in *Internal) carry(ctx context.Context, o orders.Order, answer []byte) (line []byte, last bool) {
	if o.Verb == orders.Thaw {
		if err := in.thaw(o); err != nil {
			return orders.AppendRefused(answer, err), false
		}
		return orders.AppendThawed(answer, in.guest.Frozen()), false
	}
	last = o.Reason != "pause"
	if last {
		in.closeIdle()
	}
	report, err := in.guest.Freeze(ctx, quiesce.Wish{
		Reason: o.Reason, HookTimeout: o.HookTimeout, Sync: o.Sync, FSFreeze: o.FSFreeze, Limit: o.Limit,
	})
	if err != nil {
		return orders.AppendRefused(answer, err), last
	}
	return orders.AppendFrozen(answer, report.Frozen, report.Took, report.Hook), last
}

// thaw undoes a freeze on the same machine, also where there was none. A machine
// that stood still is told the time, before programs can read it. The reason is
// for whoever reads along.
func (in *Internal) thaw(o orders.Order) error {
	if err := in.public.identity.Refresh(o.UnixNS, o.Entropy); err != nil {
		return err
	}
	if err := in.guest.Thaw(false); err != nil {
		return thawFault(err)
	}
	return nil
}

// closeIdle ends the peer's HTTP connections that have no request under way.
func (in *Internal) closeIdle() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, server := range in.servers {
		server.SetKeepAlivesEnabled(false)
		server.SetKeepAlivesEnabled(true)
	}
}

func (in *Internal) serverOf(handler http.Handler) *http.Server {
	server := newServer(handler)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.servers = append(in.servers, server)
	return server
}
