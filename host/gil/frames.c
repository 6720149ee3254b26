/* SPDX-License-Identifier: BSD-3-Clause */
/* frames - see frames.h.
 *
 * With holder.c the only file that sees CPython's internal headers: thread states, frames and code
 * objects are laid out as the headers say that this was built with, which the holder's record has
 * shown to be those of the interpreter that runs (bh_gil_record_is_open).
 *
 * Nothing of the interpreter's is ever followed by a load. The kernel copies it, by
 * process_vm_readv() on our own process, and says so where an address has gone: so there is no
 * fault to catch and no handler to install, and the sanitizers have nothing to see either. What
 * was copied may be stale or torn all the same; hence every length is bounded, every object's type
 * is looked at, and every walk ends by count.
 *
 * Thread: any. GIL: held or not. Blocks: no; there is no lock, since readers share nothing. Keeps:
 * GIL-6, CP-3. */
#include "config.h"

#define Py_BUILD_CORE 1
#include <Python.h>

#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#include "host/gil/frames.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/gil/internal.h"

#define THREADS_MAX 256 /* shown */
#define STATES_MAX 1024 /* looked at, so that main and the holder are among those shown */
#define INTERPRETERS_MAX 64
#define FRAMES_MAX 100
#define TRIES 3 /* at something that moves while it is read */
#define FILE_LENGTH 200
#define NAME_LENGTH 100
#define TABLE_MAX 65536u /* bytes of a code object's line table that are gone through */

/* ---- reading what may have gone -------------------------------------------------------------- */

/* How many bytes came: it ends at the first page that is not there. */
static size_t fetch(void *to, uintptr_t from, size_t size)
{
	struct iovec into = { to, size };
	struct iovec of = { (void *)from, size };
	ssize_t n = process_vm_readv(getpid(), &into, 1, &of, 1, 0);

	return n < 0 ? 0 : (size_t)n;
}

static bool fetch_all(void *to, uintptr_t from, size_t size)
{
	return fetch(to, from, size) == size;
}

/* NULL as well when it cannot be read. */
static uintptr_t fetch_pointer(uintptr_t from)
{
	uintptr_t value = 0;

	return fetch_all(&value, from, sizeof(value)) ? value : 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* UTF-8 that JSON and a line of the log can take. */
static size_t put_char(char *out, uint32_t c)
{
	if (c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff)
		c = '?';
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

static uint32_t get_char(const unsigned char *data, unsigned kind, size_t i)
{
	uint16_t two;
	uint32_t four;

	if (kind == 1)
		return data[i];
	if (kind == 2) {
		memcpy(&two, data + 2 * i, sizeof(two));
		return two;
	}
	memcpy(&four, data + 4 * i, sizeof(four));
	return four;
}

enum part { FIRST, LAST };

/* Where a str's characters lie, of which at most `n_max` are of use. */
static bool find_chars(uintptr_t object, enum part part, size_t n_max, uintptr_t *ret_at,
		       unsigned *ret_kind, size_t *ret_n, bool *ret_cut)
{
	PyASCIIObject head;
	size_t n;

	if (!fetch_all(&head, object, sizeof(head)) || head.ob_base.ob_type != &PyUnicode_Type ||
	    !head.state.compact || head.length < 0)
		return false;
	*ret_kind = head.state.kind;
	if (*ret_kind != 1 && *ret_kind != 2 && *ret_kind != 4)
		return false;
	n = (size_t)head.length < n_max ? (size_t)head.length : n_max;
	*ret_at = object + (head.state.ascii ? sizeof(head) : sizeof(PyCompactUnicodeObject));
	if (part == LAST)
		*ret_at += *ret_kind * ((size_t)head.length - n);
	*ret_cut = n < (size_t)head.length;
	*ret_n = n;
	return true;
}

/* A str as at most `max` bytes, not more than FILE_LENGTH, and "…" where it was cut. `out` has room
 * for all that. */
static void read_text(uintptr_t object, enum part part, size_t max, char *out)
{
	unsigned char data[4 * FILE_LENGTH];
	char text[4 * FILE_LENGTH];
	size_t n = 0, length = 0, from = 0;
	uintptr_t at = 0;
	unsigned kind = 1;
	bool cut = false;

	if (!find_chars(object, part, max, &at, &kind, &n, &cut) ||
	    !fetch_all(data, at, n * kind)) {
		memcpy(out, "?", 2);
		return;
	}
	for (size_t i = 0; i < n; i++)
		length += put_char(text + length, get_char(data, kind, i));
	cut |= length > max;
	if (length > max && part == LAST) {
		for (from = length - max; ((unsigned char)text[from] & 0xc0) == 0x80;)
			from++;
	} else if (length > max) {
		for (length = max; ((unsigned char)text[length] & 0xc0) == 0x80;)
			length--;
	}
	sprintf(out, "%s%.*s%s", cut && part == LAST ? "…" : "", (int)(length - from), text + from,
		cut && part == FIRST ? "…" : "");
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* A bytes object, read piece by piece: most answers lie in the first. */
struct table {
	uintptr_t at; /* of what comes after the piece */
	size_t left;  /* after the piece */
	size_t n, next;
	unsigned char piece[256];
};

static bool table_open(struct table *table, uintptr_t object)
{
	PyVarObject head;

	if (!fetch_all(&head, object, sizeof(head)) || head.ob_base.ob_type != &PyBytes_Type ||
	    head.ob_size < 0)
		return false;
	table->at = object + offsetof(PyBytesObject, ob_sval);
	table->left = (size_t)head.ob_size < TABLE_MAX ? (size_t)head.ob_size : TABLE_MAX;
	table->n = table->next = 0;
	return true;
}

/* -1 at its end. */
static int table_next(struct table *table)
{
	size_t size = table->left < sizeof(table->piece) ? table->left : sizeof(table->piece);

	if (table->next == table->n) {
		if (size == 0 || !fetch_all(table->piece, table->at, size))
			return -1;
		table->at += size;
		table->left -= size;
		table->n = size;
		table->next = 0;
	}
	return table->piece[table->next++];
}

static void table_skip(struct table *table, int n)
{
	while (n-- > 0)
		(void)table_next(table);
}

/* Six bits a byte, the low ones first; 0x40: more follow. */
static uint32_t table_varint(struct table *table)
{
	uint32_t value = 0;

	for (unsigned shift = 0; shift < 32; shift += 6) {
		int byte = table_next(table);

		if (byte < 0)
			break;
		value |= (uint32_t)(byte & 0x3f) << shift;
		if (!(byte & 0x40))
			break;
	}
	return value;
}

/* The sign is the lowest bit. */
static int64_t table_delta(struct table *table)
{
	uint32_t value = table_varint(table);

	return value & 1 ? -(int64_t)(value >> 1) : (int64_t)(value >> 1);
}

/* The rest of one entry of co_linetable (CPython's Objects/locations.md): by how much it moves the
 * line on. */
static int64_t table_entry(struct table *table, int kind)
{
	int64_t delta = 0;

	switch (kind) {
	case PY_CODE_LOCATION_INFO_NONE:
		break;
	case PY_CODE_LOCATION_INFO_LONG:
		delta = table_delta(table);
		for (int i = 0; i < 3; i++)
			(void)table_varint(table);
		break;
	case PY_CODE_LOCATION_INFO_NO_COLUMNS:
		delta = table_delta(table);
		break;
	case PY_CODE_LOCATION_INFO_ONE_LINE0:
	case PY_CODE_LOCATION_INFO_ONE_LINE1:
	case PY_CODE_LOCATION_INFO_ONE_LINE2:
		delta = kind - PY_CODE_LOCATION_INFO_ONE_LINE0;
		table_skip(table, 2);
		break;
	default: /* PY_CODE_LOCATION_INFO_SHORT0 … 9 */
		table_skip(table, 1);
	}
	return delta;
}

/* The line of the instruction at `offset` bytes; -1: it has none, or it cannot be told. */
static int64_t find_line(const PyCodeObject *code, intptr_t offset)
{
	struct table table;
	int64_t line = code->co_firstlineno;
	intptr_t end = 0;

	if (offset < 0)
		return line;
	if (!table_open(&table, (uintptr_t)code->co_linetable))
		return -1;
	for (;;) {
		int head = table_next(&table);
		int kind = head >> 3 & 15;

		if (head < 0x80) /* its end, or nothing that begins an entry */
			return -1;
		line += table_entry(&table, kind);
		end += ((head & 7) + 1) * (intptr_t)sizeof(_Py_CODEUNIT);
		if (offset < end)
			return kind == PY_CODE_LOCATION_INFO_NONE ? -1 : line;
	}
}

/* ---- frames ---------------------------------------------------------------------------------- */

#if PY_VERSION_HEX >= 0x030d0000
#define FRAME_CODE(frame) ((uintptr_t)(frame)->f_executable)
#define FRAME_AT(frame) ((uintptr_t)(frame)->instr_ptr)
#else
#define FRAME_CODE(frame) ((uintptr_t)(frame)->f_code)
#define FRAME_AT(frame) ((uintptr_t)(frame)->prev_instr)
#endif

/* What is copied of a frame while its thread may be running: little, so that it is done soon.
 * Code objects stay as they are for as long as somebody is in them. */
struct link {
	uintptr_t code, at; /* `at`: of its present instruction */
	char owner;
};

struct chain {
	bool cut; /* the rest could not be read, or there was too much of it */
	unsigned n;
	struct link links[FRAMES_MAX];
};

static uintptr_t innermost_frame(const PyThreadState *state)
{
#if PY_VERSION_HEX >= 0x030d0000
	return (uintptr_t)state->current_frame;
#else
	/* The C frame of the innermost eval loop; it lies on the thread's own stack. */
	if (!state->cframe)
		return 0;
	return fetch_pointer((uintptr_t)state->cframe + offsetof(_PyCFrame, current_frame));
#endif
}

/* The places that the eval loop leaves on the C stack where C calls Python; there is no code of
 * anybody's in them. */
static bool is_shim(const struct _PyInterpreterFrame *frame)
{
#if PY_VERSION_HEX >= 0x030c0000
	return frame->owner == FRAME_OWNED_BY_CSTACK;
#else
	(void)frame;
	return false;
#endif
}

static void read_chain(uintptr_t at, struct chain *ret)
{
	struct _PyInterpreterFrame frame;
	const size_t size = offsetof(struct _PyInterpreterFrame, localsplus);

	ret->cut = false;
	ret->n = 0;
	/* Shims are not shown but counted, so that a chain in a circle ends. */
	for (unsigned steps = 0; at; steps++, at = (uintptr_t)frame.previous) {
		ret->cut = steps == 3 * FRAMES_MAX || !fetch_all(&frame, at, size) ||
			   (ret->n == FRAMES_MAX && !is_shim(&frame));
		if (ret->cut)
			return;
		if (!is_shim(&frame))
			ret->links[ret->n++] =
				(struct link){ FRAME_CODE(&frame), FRAME_AT(&frame), frame.owner };
	}
}

/* NULL: not a frame after all. `*ret_begun` is false for one that has not got to its first own
 * instruction, and that Python itself does not show. */
static json_t *render_frame(const struct link *link, bool *ret_begun)
{
	const size_t size = offsetof(PyCodeObject, co_code_adaptive);
	char file[FILE_LENGTH + sizeof("…")], name[NAME_LENGTH + sizeof("…")];
	PyCodeObject code;
	intptr_t offset;
	int64_t line;

	*ret_begun = true;
	if (!fetch_all(&code, link->code, size) || Py_TYPE(&code) != &PyCode_Type)
		return NULL;
	offset = (intptr_t)(link->at - (link->code + size));
	if (link->owner != FRAME_OWNED_BY_GENERATOR &&
	    offset < code._co_firsttraceable * (intptr_t)sizeof(_Py_CODEUNIT)) {
		*ret_begun = false;
		return NULL;
	}
	read_text((uintptr_t)code.co_filename, LAST, FILE_LENGTH, file);
	read_text((uintptr_t)code.co_qualname, FIRST, NAME_LENGTH, name);
	line = find_line(&code, offset);
	if (line < 0)
		return json_sprintf("%s:? in %s", file, name);
	return json_sprintf("%s:%lld in %s", file, (long long)line, name);
}

static json_t *render_chain(struct chain *chain)
{
	json_t *frames = json_array();

	for (unsigned i = 0; frames && i < chain->n; i++) {
		bool begun = true;
		json_t *frame = render_frame(&chain->links[i], &begun);

		if (frame) {
			if (json_array_append_new(frames, frame) == 0)
				continue;
			json_decref(frames);
			return NULL;
		}
		if (begun) {
			chain->cut = true; /* whatever follows belongs to something else */
			break;
		}
	}
	return frames;
}

/* ---- threads --------------------------------------------------------------------------------- */

static json_t *render_thread(uintptr_t at, bool holds)
{
	PyThreadState state;
	struct chain chain = { 0 };
	char name[16];
	json_t *frames;
	bool moved = true;

	if (!fetch_all(&state, at, sizeof(state)))
		return json_null(); /* it has just ended */
	/* Read again when the innermost frame has become another meanwhile. A thread that holds
	 * still is read once. */
	for (int i = 0; i < TRIES && moved; i++) {
		uintptr_t innermost = innermost_frame(&state);

		read_chain(innermost, &chain);
		moved = !fetch_all(&state, at, sizeof(state)) ||
			innermost_frame(&state) != innermost;
	}
	frames = render_chain(&chain);
	bh_gil_ledger_read_name((uint32_t)state.native_thread_id, name);
	return json_pack("{s:I, s:s, s:b, s:b, s:o}", "tid", (json_int_t)state.native_thread_id,
			 "thread", name, "holds", holds, "cut", chain.cut || moved, "frames",
			 frames);
}

struct states {
	unsigned n;
	uintptr_t at[STATES_MAX];
	uint32_t tid[STATES_MAX];
};

/* false: the list has moved under the reader. */
static bool list_states_of(uintptr_t interpreter, struct states *states)
{
	uintptr_t at = fetch_pointer(interpreter + offsetof(PyInterpreterState, threads.head));
	PyThreadState state;

	for (; at && states->n < STATES_MAX; at = (uintptr_t)state.next) {
		if (!fetch_all(&state, at, sizeof(state)) || (uintptr_t)state.interp != interpreter)
			return false;
		states->at[states->n] = at;
		states->tid[states->n++] = (uint32_t)state.native_thread_id;
	}
	return true;
}

static bool list_states(struct states *states)
{
	uintptr_t at = fetch_pointer((uintptr_t)&_PyRuntime.interpreters.head);
	bool whole = true;

	states->n = 0;
	for (int i = 0; at && i < INTERPRETERS_MAX; i++) {
		whole &= list_states_of(at, states);
		at = fetch_pointer(at + offsetof(PyInterpreterState, next));
	}
	return whole;
}

static json_t *render_states(const struct states *states)
{
	struct bh_gil_record record = { 0 };
	bool held = bh_gil_record_read(&record);
	json_t *threads = json_array();
	unsigned shown = 0;

	for (unsigned i = 0; threads && i < states->n; i++) {
		bool holds = held && states->at[i] == record.state;
		json_t *thread;

		/* The last places are kept for main, whose state is the oldest, and the holder. */
		if (shown >= THREADS_MAX - 2 && !holds && states->tid[i] != (uint32_t)getpid())
			continue;
		thread = render_thread(states->at[i], holds);
		if (json_is_null(thread))
			continue;
		shown++;
		if (json_array_insert_new(threads, holds ? 0 : json_array_size(threads), thread) <
		    0) {
			json_decref(threads);
			return NULL;
		}
	}
	return threads;
}

/* ---- public ---------------------------------------------------------------------------------- */

bh_status bh_gil_frames_init(struct bh_error *err)
{
	uintptr_t probe = 1, copy = 0;

	(void)err;
	errno = 0;
	if (fetch_all(&copy, (uintptr_t)&probe, sizeof(copy)) && copy == 1)
		return 0;
	bh_log(BH_LOG_WARNING, "gil", "Python's stacks cannot be read here; reports go without",
	       BH_STR("call", "process_vm_readv"), BH_STR("reason", strerrorname_np(errno)),
	       BH_STR("hint", "a system call filter forbids it"));
	return 0;
}

json_t *bh_gil_frames_read(void)
{
	struct states states;

	if (!bh_gil_record_is_open())
		return json_array();
	/* A list that keeps moving is shown as far as it was read; where the kernel forbids reading
	 * that is nowhere. */
	for (int i = 0; i < TRIES && !list_states(&states); i++)
		;
	return render_states(&states);
}
