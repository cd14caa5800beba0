// Command agent is process 1 of a SPACE sandbox and serves its HTTP interface.
// Started as any other process, it is a plain server, for tests on a host.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"syscall"

	"space/agent/api"
	"space/agent/boot"
	"space/agent/command"
	"space/agent/forward"
	"space/agent/freezer"
	"space/agent/hook"
	"space/agent/identity"
	"space/agent/mount"
	"space/agent/quiesce"
	"space/agent/reaper"
	"space/agent/trust"
)

// version is set by the linker.
var version = "dev"

// settings differ between a sandbox and a host.
type settings struct {
	public   string     // address of the public listener
	internal string     // address of the internal one
	orders   string     // address of the one for orders, which is as internal
	card     string     // these two answer only packets from this interface; "" any
	peer     net.IP     // and only this address
	forward  netip.Addr // where servers that listen on loopback are to be reached; invalid: nowhere
	machine  identity.Machine
	group    *freezer.Group
	root     *freezer.FileSystem // nil: not ours to freeze
	shutdown func()
}

func main() {
	if len(os.Args) > 1 && os.Getpid() != 1 {
		switch os.Args[1] {
		case command.StepMode:
			os.Exit(command.Step(os.Args[2:]))
		case mount.RelayMode:
			os.Exit(mount.Relay())
		}
	}
	if os.Getpid() == 1 {
		// The arguments are what the kernel did not understand of its command line.
		if err := boot.Run(); err != nil {
			boot.Fatal(err)
		}
		// Collect garbage before it doubles what output is kept: memory that
		// process 1 holds is missing in the sandbox.
		debug.SetMemoryLimit(command.Budget() + 32<<20)
		group, root := freezers()
		trusted := trust.System("")
		err := run(settings{
			public: ":49983", internal: ":49982", orders: ":49981", card: "eth0", peer: net.ParseIP(boot.Gateway), forward: netip.MustParseAddr(boot.Address),
			machine: identity.Machine{
				Kernel: true, Etc: "/etc", BootID: boot.BootID, Trust: &trusted, Env: boot.Environment, Run: "/run", Events: "http://" + boot.Gateway,
			}, group: group, root: root,
			shutdown: boot.Shutdown,
		}, func() { boot.Log("%s is ready", version) })
		boot.Fatal(err)
	}
	s := fromFlags()
	if err := run(s, func() {}); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func fromFlags() settings {
	public := flag.String("listen", "127.0.0.1:49983", "address of the public listener")
	internal := flag.String("internal", "127.0.0.1:49982", "address of the internal listener")
	orders := flag.String("orders", "127.0.0.1:49981", "address of the listener for orders")
	peer := flag.String("internal-peer", boot.Gateway, "the only client address that the internal listener and the one for orders answer")
	root := flag.String("root", "", "change root to this folder first; its /etc then gets the sandbox's names")
	flag.Parse()
	s := settings{public: *public, internal: *internal, orders: *orders, peer: net.ParseIP(*peer), group: &freezer.Group{}, shutdown: func() { os.Exit(0) }}
	if s.peer == nil || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if *root != "" {
		if err := enter(*root); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", *root, err)
			os.Exit(1)
		}
		trusted := trust.System("")
		s.machine.Etc, s.machine.Trust = "/etc", &trusted
	}
	return s
}

// freezers are what a sandbox is stopped with. One whose kernel lacks them runs
// all the same, and says of itself that it was not frozen.
func freezers() (*freezer.Group, *freezer.FileSystem) {
	const place = "/run/space-freezer"
	group, err := freezer.Open(place, "user")
	if err != nil {
		boot.Log("programs cannot be frozen: %v", err)
		group = &freezer.Group{}
	} else if err := freezer.KeepFreezing(place, "still"); err != nil {
		boot.Log("each freeze will take longer: %v", err)
	}
	root, err := freezer.OpenFileSystem("/")
	if err != nil {
		boot.Log("the root file system cannot be frozen: %v", err)
	}
	return group, root
}

func enter(root string) error {
	if err := syscall.Chroot(root); err != nil {
		return err
	}
	return os.Chdir("/")
}

// run serves until a listener fails.
func run(s settings, ready func()) error {
	public, err := net.Listen("tcp4", s.public)
	if err != nil {
		return err
	}
	internal, err := listenOn(s.card, s.internal)
	if err != nil {
		return err
	}
	orders, err := listenOn(s.card, s.orders)
	if err != nil {
		return err
	}
	if os.Getpid() != 1 {
		adoptOrphans()
	}
	id := identity.New(s.machine)
	commands := command.NewTable(reaper.New(), s.group, id.Env)
	hooks := hook.New(commands, hook.Dir)
	users := api.NewPublic(version, id, commands)
	worker := api.NewInternal(users, quiesce.New(s.group, s.root, hooks), hooks, s.peer, s.shutdown)
	if s.forward.IsValid() {
		forwarder, err := forward.New(s.forward)
		if err != nil {
			return err
		}
		users.AlsoDisconnect(forwarder.Disconnect)
		go forwarder.Run(nil)
	}
	failed := make(chan error, 3)
	go func() { failed <- users.Serve(public) }()
	go func() { failed <- worker.Serve(internal) }()
	go func() { failed <- worker.ServeOrders(orders) }()
	ready()
	return <-failed
}

// adoptOrphans makes orphaned descendants our children, as they are process 1's.
func adoptOrphans() {
	const prSetChildSubreaper = 36
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}

// listenOn listens for packets that arrive on one interface. What a program in
// the sandbox sends to it, from whatever address it gave itself, arrives on lo.
func listenOn(card, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) (err error) {
		if card == "" {
			return nil
		}
		if e := conn.Control(func(fd uintptr) { err = syscall.BindToDevice(int(fd), card) }); e != nil {
			return e
		}
		return err
	}}
	return config.Listen(context.Background(), "tcp4", address)
}
