package mount

import (
	"bytes"
	"encoding/binary"
	"syscall"
)

// Of FUSE (include/uapi/linux/fuse.h), what the agent itself has to know.
const (
	opLookup      = 1
	opForget      = 2
	opSymlink     = 6
	opMknod       = 8
	opMkdir       = 9
	opLink        = 13
	opInit        = 26
	opCreate      = 35
	opInterrupt   = 36
	opPoll        = 40
	opBatchForget = 42
	opKnown       = 1 << 20 // ours: what the kernel knows from a connection before

	inHeader    = 40
	outHeader   = 16
	maxData     = 128 << 10
	bufferBytes = maxData + 64<<10
	knownBytes  = 256 << 10 // of one message that tells what is known
)

// nameAt is where a message that brings a new entry has its name; absent: it brings none.
var nameAt = map[uint32]int{
	opLookup: inHeader, opSymlink: inHeader, opMknod: inHeader + 16, opMkdir: inHeader + 8,
	opLink: inHeader + 8, opCreate: inHeader + 16,
}

// initAnswer accepts the kernel's terms, with what the server can do.
func initAnswer(message []byte) []byte {
	const (
		asyncRead, posixLocks, atomicTruncate, bigWrites = 1 << 0, 1 << 1, 1 << 3, 1 << 5
		flockLocks, autoInvalidate, maxPages             = 1 << 10, 1 << 12, 1 << 22
		major, minor, page                               = 7, 31, 4096
	)
	out := make([]byte, outHeader+64)
	put := binary.LittleEndian
	put.PutUint32(out, uint32(len(out)))
	copy(out[8:16], message[8:16])
	body := out[outHeader:]
	put.PutUint32(body, major)
	put.PutUint32(body[4:], minor)
	put.PutUint32(body[8:], maxData) // read ahead
	put.PutUint32(body[12:], asyncRead|posixLocks|atomicTruncate|bigWrites|flockLocks|autoInvalidate|maxPages)
	put.PutUint16(body[16:], 16) // requests in the background
	put.PutUint16(body[18:], 12)
	put.PutUint32(body[20:], maxData) // written at once
	put.PutUint32(body[24:], 1)       // times are exact to the nanosecond
	put.PutUint16(body[28:], maxData/page)
	return out
}

func refusal(message []byte, why syscall.Errno) []byte {
	out := make([]byte, outHeader)
	binary.LittleEndian.PutUint32(out, outHeader)
	binary.LittleEndian.PutUint32(out[4:], uint32(-int32(why)))
	copy(out[8:], message[8:16])
	return out
}

// note keeps what a successful answer tells the kernel of an entry.
func note(table map[uint64]*known, message, answer []byte) {
	at, brings := nameAt[binary.LittleEndian.Uint32(message[4:])]
	if !brings || len(answer) < outHeader+8 || len(message) <= at {
		return
	}
	id := binary.LittleEndian.Uint64(answer[outHeader:])
	if id == 0 {
		return
	}
	name := message[at:]
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	entry := table[id]
	if entry == nil {
		entry = &known{}
		table[id] = entry
	}
	entry.parent, entry.name = binary.LittleEndian.Uint64(message[16:]), string(name)
	entry.times++
}

// forget takes back what the kernel has forgotten.
func forget(table map[uint64]*known, message []byte) {
	if binary.LittleEndian.Uint32(message[4:]) == opForget {
		forgetOne(table, binary.LittleEndian.Uint64(message[16:]), binary.LittleEndian.Uint64(message[inHeader:]))
		return
	}
	for left := message[inHeader+8:]; len(left) >= 16; left = left[16:] {
		forgetOne(table, binary.LittleEndian.Uint64(left), binary.LittleEndian.Uint64(left[8:]))
	}
}

func forgetOne(table map[uint64]*known, id, times uint64) {
	if entry := table[id]; entry != nil {
		if entry.times <= times {
			delete(table, id)
		} else {
			entry.times -= times
		}
	}
}

// tell puts what is known into messages for a server.
func tell(table map[uint64]*known) (messages [][]byte) {
	message := make([]byte, inHeader)
	flush := func() {
		if len(message) > inHeader {
			binary.LittleEndian.PutUint32(message, uint32(len(message)))
			binary.LittleEndian.PutUint32(message[4:], opKnown)
			messages = append(messages, message)
		}
		message = make([]byte, inHeader)
	}
	var number [8]byte
	for id, entry := range table {
		for _, v := range []uint64{id, entry.parent, entry.times} {
			binary.LittleEndian.PutUint64(number[:], v)
			message = append(message, number[:]...)
		}
		message = append(message, byte(len(entry.name)), byte(len(entry.name)>>8))
		message = append(message, entry.name...)
		if len(message) > knownBytes {
			flush()
		}
	}
	flush()
	return messages
}
