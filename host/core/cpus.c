/* SPDX-License-Identifier: BSD-3-Clause */
/* cpus - see cpus.h. */
#include "config.h"

#include "host/core/cpus.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static_assert(BH_CPUS_MAX == 8192, "BH_CPUS_ACCEPTED says so");
static_assert(BH_CPUS_MAX % CPU_SETSIZE == 0, "whole sets");

/* Digits at `*text`, which moves behind them. */
static bool read_cpu(const char **text, unsigned *ret)
{
	unsigned number = 0;
	const char *at = *text;

	for (; *at >= '0' && *at <= '9'; at++) {
		number = number * 10 + (unsigned)(*at - '0');
		if (number >= BH_CPUS_MAX)
			return false;
	}
	if (at == *text)
		return false;
	*text = at;
	*ret = number;
	return true;
}

bh_status bh_cpus_parse(const char *text, struct bh_cpus *ret_cpus)
{
	struct bh_cpus cpus;

	memset(&cpus, 0, sizeof(cpus));
	for (;;) {
		unsigned first, last;

		if (!read_cpu(&text, &first))
			return -EINVAL;
		last = first;
		if (*text == '-') {
			text++;
			if (!read_cpu(&text, &last) || last < first)
				return -EINVAL;
		}
		for (unsigned cpu = first; cpu <= last; cpu++)
			CPU_SET_S(cpu, sizeof(cpus.set), cpus.set);
		if (*text == '\0')
			break;
		if (*text++ != ',')
			return -EINVAL;
	}
	*ret_cpus = cpus;
	return 0;
}

static bool has(const struct bh_cpus *cpus, unsigned cpu)
{
	return cpu < BH_CPUS_MAX && CPU_ISSET_S(cpu, sizeof(cpus->set), cpus->set);
}

size_t bh_cpus_format(const struct bh_cpus *cpus, char *buffer, size_t size)
{
	static const char cut[] = "…";
	size_t used = 0;

	assert(size >= 8);
	buffer[0] = '\0';
	for (unsigned cpu = 0; cpu < BH_CPUS_MAX; cpu++) {
		char range[16];
		unsigned first = cpu;
		int n;

		if (!has(cpus, cpu))
			continue;
		while (has(cpus, cpu + 1))
			cpu++;
		n = snprintf(range, sizeof(range), "%s%u", used ? "," : "", first);
		if (cpu > first)
			n += snprintf(range + n, sizeof(range) - (size_t)n, "-%u", cpu);
		/* Room is kept for the sign that something is missing. */
		if (used + (size_t)n + sizeof(cut) > size) {
			memcpy(buffer + used, cut, sizeof(cut));
			return used + sizeof(cut) - 1;
		}
		memcpy(buffer + used, range, (size_t)n + 1);
		used += (size_t)n;
	}
	return used;
}

bh_status bh_cpus_allowed(struct bh_cpus *ret_cpus, struct bh_error *err)
{
	struct bh_cpus cpus;

	memset(&cpus, 0, sizeof(cpus));
	if (sched_getaffinity(0, sizeof(cpus.set), cpus.set) < 0)
		return bh_raise(err, -errno, "cpus.read");
	*ret_cpus = cpus;
	return 0;
}

bh_status bh_cpus_pin(const struct bh_cpus *cpus, struct bh_error *err)
{
	char text[128];
	bh_status st;

	if (sched_setaffinity(0, sizeof(cpus->set), cpus->set) == 0)
		return 0;
	st = -errno;
	bh_cpus_format(cpus, text, sizeof(text));
	return bh_raise(err, st, "cpus.pin", BH_STR("cpus", text));
}

unsigned bh_cpus_count(const struct bh_cpus *cpus)
{
	return (unsigned)CPU_COUNT_S(sizeof(cpus->set), cpus->set);
}

struct bh_cpus bh_cpus_without(const struct bh_cpus *cpus, const struct bh_cpus *allowed)
{
	struct bh_cpus rest = *cpus;

	for (unsigned cpu = 0; cpu < BH_CPUS_MAX; cpu++)
		if (has(allowed, cpu))
			CPU_CLR_S(cpu, sizeof(rest.set), rest.set);
	return rest;
}
