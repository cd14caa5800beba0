package envd

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// usage remembers the processor's counters, so that the share in use is that
// since it was asked last.
type usage struct {
	mu          sync.Mutex
	busy, total uint64
}

func newUsage() *usage { return &usage{} }

// processor is the share of all processors in use since the last call, or
// since the boot, in percent.
func (u *usage) processor() float64 {
	busy, total, err := processorTicks("/proc/stat")
	if err != nil {
		return 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	usedTicks, allTicks := float64(busy)-float64(u.busy), float64(total)-float64(u.total)
	u.busy, u.total = busy, total
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

func (h *Handler) metrics(w http.ResponseWriter, _ *http.Request) error {
	memTotal, memUsed, memCached, err := memory("/proc/meminfo")
	if err != nil {
		return err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs("/", &disk); err != nil {
		return err
	}
	block := uint64(disk.Bsize)
	return writeJSON(w, map[string]any{
		"ts":           time.Now().Unix(),
		"cpu_count":    runtime.NumCPU(),
		"cpu_used_pct": h.usage.processor(),
		"mem_total":    memTotal,
		"mem_used":     memUsed,
		"mem_cache":    memCached,
		"disk_total":   disk.Blocks * block,
		"disk_used":    (disk.Blocks - disk.Bfree) * block,
	})
}
