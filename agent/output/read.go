package output

import "sort"

// Piece is what a reader gets next: bytes of one stream, or a gap.
type Piece struct {
	Offset int64
	Next   int64 // the offset to ask for afterwards
	Stream Stream
	Data   []byte // nil: the bytes from Offset to Next are no longer kept
}

// At returns the piece that begins at offset from. Without one it returns
// either a channel that is closed when there may be, or nil when the log is
// sealed and there is nothing at from or after it.
func (l *Log) At(from int64) (piece Piece, ok bool, wait <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from < l.first {
		return Piece{Offset: from, Next: l.first}, true, nil
	}
	if from >= l.next {
		if l.sealed {
			return Piece{}, false, nil
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		return Piece{}, false, l.changed
	}
	i := sort.Search(len(l.blocks), func(i int) bool { return l.blocks[i].end() > from })
	b := l.blocks[i]
	at := int(from - b.start)
	j := sort.Search(len(b.runs), func(j int) bool { return int(b.runs[j].end) > at })
	end := int(b.runs[j].end)
	return Piece{
		Offset: from,
		Next:   b.start + int64(end),
		Stream: b.runs[j].stream,
		Data:   b.data[at:end:end],
	}, true, nil
}
