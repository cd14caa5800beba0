package boot

import (
	"os"
	"syscall"
)

// limits are what every program in the sandbox begins with. Many files for
// those who raise their own limit (databases, proxies); a soft limit that does
// not make programs loop over a million descriptors. No core dumps: they hold
// what the program knew, and fill the disk.
var limits = []struct {
	resource   int
	soft, hard uint64
}{
	{syscall.RLIMIT_NOFILE, 65536, 1048576},
	{syscall.RLIMIT_CORE, 0, ^uint64(0)},
}

// sysctls are what a developer's machine would have: ping without root, ports
// below 1024 for the user, watches for large source trees.
var sysctls = map[string]string{
	"/proc/sys/net/ipv4/ping_group_range":           "0 2147483647",
	"/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
	"/proc/sys/fs/inotify/max_user_watches":         "524288",
	"/proc/sys/fs/inotify/max_user_instances":       "1024",
	"/proc/sys/vm/max_map_count":                    "262144",
}

// setLimits also gives this program the environment of process 1, in place of
// what the kernel's command line left over.
func setLimits() error {
	for _, l := range limits {
		if err := syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: l.soft, Max: l.hard}); err != nil {
			return err
		}
	}
	for path, value := range sysctls {
		os.WriteFile(path, []byte(value), 0) // not every kernel has every one
	}
	os.Clearenv()
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	os.Setenv("HOME", "/root")
	return syscall.Sethostname([]byte("sandbox"))
}
