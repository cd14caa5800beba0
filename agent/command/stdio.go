package command

import (
	"os"
	"syscall"

	"space/agent/output"
)

// stdio is both ends of a command's three descriptors. The child's ends block,
// as programs expect; ours do not, so that a goroutine waiting for one holds no
// thread and no buffer.
type stdio struct {
	child   [3]int
	close   []int // the child's ends to close once it runs
	sources []source
	input   *os.File // nil without stdin
	tty     *os.File // the master, also input and only source
}

type source struct {
	file   *os.File
	stream output.Stream
}

// open makes the descriptors of a command owned by uid.
func open(s *Spec, uid uint32) (*stdio, error) {
	if s.PTY != nil {
		return openTTY(*s.PTY, uid)
	}
	return openPipes(s.Stdin)
}

func openPipes(stdin bool) (io *stdio, err error) {
	io = &stdio{}
	defer func() {
		if err != nil {
			io.abandon()
		}
	}()
	if stdin {
		read, write, err := pipe()
		if err != nil {
			return io, err
		}
		io.child[0] = read
		io.close = append(io.close, read)
		if io.input, err = ours(write, "stdin"); err != nil {
			return io, err
		}
	} else {
		null, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return io, err
		}
		io.child[0] = null
		io.close = append(io.close, null)
	}
	for _, stream := range []output.Stream{output.Stdout, output.Stderr} {
		read, write, err := pipe()
		if err != nil {
			return io, err
		}
		io.child[1+int(stream)] = write
		io.close = append(io.close, write)
		file, err := ours(read, stream.String())
		if err != nil {
			return io, err
		}
		io.sources = append(io.sources, source{file, stream})
	}
	return io, nil
}

func openTTY(size Size, uid uint32) (io *stdio, err error) {
	io = &stdio{}
	defer func() {
		if err != nil {
			io.abandon()
		}
	}()
	master, slave, err := openPTY(size, uid)
	if err != nil {
		return io, err
	}
	io.child = [3]int{slave, slave, slave}
	io.close = []int{slave}
	if io.tty, err = ours(master, "pty"); err != nil {
		return io, err
	}
	io.input = io.tty
	io.sources = []source{{io.tty, output.PTY}}
	return io, nil
}

func pipe() (read, write int, err error) {
	var fds [2]int
	err = syscall.Pipe2(fds[:], syscall.O_CLOEXEC)
	return fds[0], fds[1], err
}

// ours makes a descriptor one that the runtime polls. It owns fd even on error.
func ours(fd int, name string) (*os.File, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// started closes the child's ends: with them open here, we would never see its end of file.
func (io *stdio) started() {
	for _, fd := range io.close {
		syscall.Close(fd)
	}
	io.close = nil
}

// abandon closes everything.
func (io *stdio) abandon() {
	io.started()
	if io.input != nil {
		io.input.Close()
	}
	for _, s := range io.sources {
		if s.file != io.input {
			s.file.Close()
		}
	}
}
