package fuse

import "syscall"

// lockWish reads struct fuse_lk_in, whose end is the last byte that is meant.
func (g *guest) lockWish(in *reader) (span, error) {
	const whole = 1
	_, id, start, end, kind, pid, flags := in.u64(), in.u64(), in.u64(), in.u64(), in.u32(), in.u32(), in.u32()
	if in.bad || kind > unlock || end < start {
		return span{}, syscall.EINVAL
	}
	if end != ^uint64(0) {
		end++
	}
	return span{owner{g, id, flags&whole != 0}, kind, pid, start, end}, nil
}

func (g *guest) setlk(h header, in *reader) error {
	want, err := g.lockWish(in)
	if err != nil {
		return err
	}
	return g.locks.set(h.node, want)
}

func (g *guest) getlk(h header, in *reader) error {
	want, err := g.lockWish(in)
	if err != nil {
		return err
	}
	found, taken := g.locks.test(h.node, want)
	if !taken {
		found = want
		found.kind = unlock
	}
	if found.end != ^uint64(0) {
		found.end--
	}
	g.out.u64(found.start)
	g.out.u64(found.end)
	g.out.u32(found.kind)
	g.out.u32(found.pid)
	return nil
}

// waitForLock answers when the lock is there, and lets others be answered first.
func (g *guest) waitForLock(h header, in *reader) error {
	want, err := g.lockWish(in)
	if err == nil {
		err = g.locks.set(h.node, want)
	}
	if err != syscall.EAGAIN {
		g.out.begin()
		return g.send(g.out.end(h.unique, err))
	}
	stop := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) >= maxWaiting {
		g.out.begin()
		return g.send(g.out.end(h.unique, syscall.ENOLCK))
	}
	g.waiting[h.unique] = stop
	go func() {
		err := g.locks.wait(h.node, want, stop)
		g.mu.Lock()
		delete(g.waiting, h.unique)
		g.mu.Unlock()
		out := &writer{}
		out.begin()
		g.send(out.end(h.unique, err))
	}()
	return nil
}

const maxWaiting = 1024

// interrupt gives up waiting; anything else is answered soon by itself.
func (g *guest) interrupt(unique uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if stop := g.waiting[unique]; stop != nil {
		close(stop)
		delete(g.waiting, unique)
	}
}
