// Package usage measures what a guest uses of its processors, memory and disk.
package usage

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Figures is what is in use now; sizes in bytes, the processors' share in
// percent of all of them.
type Figures struct {
	Time       int64   `json:"ts"`
	Processors int     `json:"cpu_count"`
	Processor  float64 `json:"cpu_used_pct"`
	Memory     uint64  `json:"mem_total"`
	MemoryUsed uint64  `json:"mem_used"`
	Cached     uint64  `json:"mem_cache"`
	Disk       uint64  `json:"disk_total"`
	DiskUsed   uint64  `json:"disk_used"`
}

// Meter remembers the processors' counters, so that the share in use is that
// since it was asked last. Each who asks has a meter of its own.
type Meter struct {
	mu          sync.Mutex
	busy, total uint64
}

// New makes a meter whose first answer is about the time since the boot.
func New() *Meter { return &Meter{} }

// Measure returns what is in use.
func (m *Meter) Measure() (Figures, error) {
	total, used, cached, err := memory("/proc/meminfo")
	if err != nil {
		return Figures{}, err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs("/", &disk); err != nil {
		return Figures{}, err
	}
	block := uint64(disk.Bsize)
	return Figures{
		Time: time.Now().Unix(), Processors: runtime.NumCPU(), Processor: m.processor(),
		Memory: total, MemoryUsed: used, Cached: cached,
		Disk: disk.Blocks * block, DiskUsed: (disk.Blocks - disk.Bfree) * block,
	}, nil
}

// processor is the share of all processors in use since the last call, or
// since the boot, in percent.
func (m *Meter) processor() float64 {
	busy, total, err := processorTicks("/proc/stat")
	if err != nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	usedTicks, allTicks := float64(busy)-float64(m.busy), float64(total)-float64(m.total)
	m.busy, m.total = busy, total
	if allTicks <= 0 || usedTicks < 0 {
		return 0
	}
	return math.Round(10000*usedTicks/allTicks) / 100
}

// processorTicks reads "cpu user nice system idle iowait irq softirq steal ...".
// Time of guests is in user's already.
func processorTicks(path string) (busy, total uint64, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 6 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("%s: %q", path, line)
	}
	const idle, wait, guest = 4, 5, 9
	for i := 1; i < len(fields) && i < guest; i++ {
		ticks, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		total += ticks
		if i != idle && i != wait {
			busy += ticks
		}
	}
	return busy, total, nil
}

// memory reads /proc/meminfo; all in bytes.
func memory(path string) (total, used, cached uint64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, 0, 0, err
	}
	defer file.Close()
	values := map[string]uint64{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			values[strings.TrimSuffix(fields[0], ":")] = n << 10
		}
	}
	cached = values["Cached"] + values["SReclaimable"]
	total = values["MemTotal"]
	if free := values["MemFree"] + values["Buffers"] + cached; free < total {
		used = total - free
	}
	return total, used, cached, lines.Err()
}
