/* SPDX-License-Identifier: BSD-3-Clause */
/* draft - what manifests and --set say, merged but still text, and every fault found on the way.
 *
 * Thread: main. Owns: all of its text. Keeps: MAN-1, MAN-2. */
#include <config.h> /* not "…": this directory has a config.h of its own */

#include "host/manifest/draft.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "host/manifest/reader.h"

/* The sink's state while one file is read. */
struct draft_file {
	struct bh_draft *draft;
	struct bh_place place;
	size_t section; /* index: the array may move */
};

void *bh_draft_grow(void *array, size_t n, size_t element_size)
{
	if (n != 0 && (n & (n - 1)) != 0)
		return array; /* not a power of two: the room of the last doubling is not used up */
	return reallocarray(array, n == 0 ? 1 : 2 * n, element_size);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void fault_write(FILE *out, struct bh_place place, const char *section, const char *key,
			const char *format, va_list args)
{
	if (place.file && place.line)
		fprintf(out, "%s:%u: ", place.file, place.line);
	else if (place.file)
		fprintf(out, "%s: ", place.file);
	if (section)
		fprintf(out, "[%s]%s", section, key ? " " : ": ");
	if (key)
		fprintf(out, "%s: ", key);
	vfprintf(out, format, args);
}

bh_status bh_draft_fault(struct bh_draft *draft, struct bh_place place, const char *section,
			 const char *key, const char *format, ...)
{
	struct bh_draft_fault *faults =
		bh_draft_grow(draft->faults, draft->n_faults, sizeof(*faults));
	char *text = NULL;
	bool failed;
	size_t length;
	FILE *out;
	va_list args;

	if (!faults)
		return -ENOMEM;
	draft->faults = faults;
	out = open_memstream(&text, &length);
	if (!out)
		return -ENOMEM;
	va_start(args, format);
	fault_write(out, place, section, key, format, args);
	va_end(args);
	failed = ferror(out) != 0;
	failed |= fclose(out) != 0;
	if (failed) {
		free(text);
		return -ENOMEM;
	}
	faults[draft->n_faults++] = (struct bh_draft_fault){ place, text };
	return 0;
}

static bool fault_before(const struct bh_draft_fault *a, const struct bh_draft_fault *b)
{
	return a->place.source != b->place.source ? a->place.source < b->place.source
						  : a->place.line < b->place.line;
}

size_t bh_draft_print_faults(struct bh_draft *draft, FILE *out)
{
	/* By insertion: stable, and nearly in order already. */
	for (size_t i = 1; i < draft->n_faults; i++) {
		struct bh_draft_fault moved = draft->faults[i];
		size_t to = i;

		for (; to > 0 && fault_before(&moved, &draft->faults[to - 1]); to--)
			draft->faults[to] = draft->faults[to - 1];
		draft->faults[to] = moved;
	}
	for (size_t i = 0; i < draft->n_faults; i++)
		fprintf(out, "%s\n", draft->faults[i].text);
	return draft->n_faults;
}

/* ---- sections and entries -------------------------------------------------------------------- */

/* The section of that name, made when it is new; its index. */
static bh_status section_get(struct bh_draft *draft, const char *name, struct bh_place place,
			     size_t *ret_index, bool *ret_made)
{
	struct bh_draft_section *sections;
	char *copy;

	*ret_made = false;
	for (*ret_index = 0; *ret_index < draft->n_sections; (*ret_index)++)
		if (strcmp(draft->sections[*ret_index].name, name) == 0)
			return 0;
	sections = bh_draft_grow(draft->sections, draft->n_sections, sizeof(*sections));
	if (!sections)
		return -ENOMEM;
	draft->sections = sections;
	copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	sections[draft->n_sections++] =
		(struct bh_draft_section){ .name = copy, .first = place, .last = place };
	*ret_made = true;
	return 0;
}

/* `value` passes over. */
static bh_status entry_append(struct bh_draft_section *section, const char *key, char *value,
			      struct bh_place place)
{
	struct bh_draft_entry *entries =
		bh_draft_grow(section->entries, section->n_entries, sizeof(*entries));
	char *key_copy = strdup(key);

	if (entries)
		section->entries = entries;
	if (!entries || !key_copy) {
		free(key_copy);
		free(value);
		return -ENOMEM;
	}
	entries[section->n_entries++] = (struct bh_draft_entry){ key_copy, value, place };
	return 0;
}

static bh_status entry_put(struct bh_draft *draft, size_t section_index, const char *key,
			   const char *text, struct bh_place place)
{
	struct bh_draft_section *section = &draft->sections[section_index];
	char *value = strdup(text);
	bh_status st = 0;

	if (!value)
		return -ENOMEM;
	for (size_t i = 0; i < section->n_entries; i++) {
		struct bh_draft_entry *entry = &section->entries[i];

		if (strcmp(entry->key, key) != 0)
			continue;
		if (entry->place.source == place.source)
			st = bh_draft_fault(draft, place, section->name, key,
					    "repeated; first on line %u", entry->place.line);
		else
			entry->place = place;
		free(entry->value);
		entry->value = value;
		return st;
	}
	return entry_append(section, key, value, place);
}

/* ---- files ----------------------------------------------------------------------------------- */

static bh_status file_section(void *arg, uint32_t line, const char *name)
{
	struct draft_file *file = arg;
	struct bh_draft_section *section;
	bool made;
	bh_status st;

	file->place.line = line;
	st = section_get(file->draft, name, file->place, &file->section, &made);
	if (st < 0 || made)
		return st;
	section = &file->draft->sections[file->section];
	if (section->last.source == file->place.source)
		return bh_draft_fault(file->draft, file->place, name, NULL,
				      "section repeated; first on line %u: write its keys there",
				      section->last.line);
	section->last = file->place;
	return 0;
}

static bh_status file_entry(void *arg, uint32_t line, const char *key, const char *value)
{
	struct draft_file *file = arg;

	file->place.line = line;
	return entry_put(file->draft, file->section, key, value, file->place);
}

static bh_status file_fault(void *arg, uint32_t line, const char *key, const char *what)
{
	struct draft_file *file = arg;

	file->place.line = line;
	return bh_draft_fault(file->draft, file->place,
			      key ? file->draft->sections[file->section].name : NULL, key, "%s",
			      what);
}

bh_status bh_draft_add_file(struct bh_draft *draft, const char *path, uint32_t source)
{
	struct draft_file file = { .draft = draft, .place = { .file = path, .source = source } };
	const struct bh_reader_sink sink = { file_section, file_entry, file_fault, &file };

	return bh_reader_file(path, &sink);
}

/* ---- --set ----------------------------------------------------------------------------------- */

/* Cuts `text` at the first `mark`; returns what is behind it, or NULL. */
static char *cut_at(char *text, char mark)
{
	char *at = strchr(text, mark);

	if (!at)
		return NULL;
	*at = '\0';
	return at + 1;
}

static void trim_end(char *text)
{
	size_t length = strlen(text);

	while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\t'))
		text[--length] = '\0';
}

bh_status bh_draft_add_set(struct bh_draft *draft, const char *set, uint32_t source)
{
	const struct bh_place place = { "--set", source, 0 };
	bh_auto_mem char *section = NULL, *value = NULL;
	char *key, *text;
	const char *what;
	size_t index;
	bool made;
	bh_status st;

	st = bh_reader_value(set, &section,
			     &what); /* a manifest's rules for bytes, and outer blanks */
	if (st < 0)
		return st;
	if (what)
		return bh_draft_fault(draft, place, NULL, NULL, "%s", what);
	text = cut_at(section, '=');
	key = text ? cut_at(section, '.') : NULL;
	if (!key || !*section || !*key)
		return bh_draft_fault(draft, place, NULL, NULL,
				      "\"%s\" sets nothing; accepted: section.key=value, such as "
				      "host.log_level=debug "
				      "or \"plugin stream.workers=2\"",
				      set);
	trim_end(key);
	st = bh_reader_value(text, &value, &what);
	if (st < 0)
		return st;
	if (what)
		return bh_draft_fault(draft, place, section, key, "%s", what);
	st = section_get(draft, section, place, &index, &made);
	return st < 0 ? st : entry_put(draft, index, key, value, place);
}

void bh_draft_fini(struct bh_draft *draft)
{
	for (size_t i = 0; i < draft->n_sections; i++) {
		struct bh_draft_section *section = &draft->sections[i];

		for (size_t k = 0; k < section->n_entries; k++) {
			free(section->entries[k].key);
			free(section->entries[k].value);
		}
		free(section->entries);
		free(section->name);
	}
	for (size_t i = 0; i < draft->n_faults; i++)
		free(draft->faults[i].text);
	free(draft->sections);
	free(draft->faults);
	*draft = (struct bh_draft){ 0 };
}
