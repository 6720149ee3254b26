/* SPDX-License-Identifier: BSD-3-Clause */
/* process_metrics - see process_metrics.h. */
#include "config.h"

#include "host/core/process_metrics.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/core/clock.h"
#include "host/core/log.h"

#define FDS "/proc/self/fd"

static void put_gauge(struct bh_metrics_text *text, const char *name, const char *help,
		      double value)
{
	bh_metrics_family(text, BH_METRICS_GAUGE, name, help);
	bh_metrics_sample(text, NULL, 0, value);
}

static void put_counter(struct bh_metrics_text *text, const char *name, const char *help,
			double value)
{
	bh_metrics_family(text, BH_METRICS_COUNTER, name, help);
	bh_metrics_sample(text, NULL, 0, value);
}

/* ---- /proc/self/stat ------------------------------------------------------------------------- */

struct stat_line { /* in the units of proc(5) */
	unsigned long long n_threads, start_ticks, virtual_bytes, resident_pages;
};

static bool stat_read(struct stat_line *ret_stat)
{
	char line[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
	const char *rest;

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	line[n] = '\0';
	/* The name may hold anything, blanks and parentheses too: the last one ends it. */
	rest = strrchr(line, ')');
	return rest && sscanf(rest + 1,
			      " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
			      "%*d %llu %*d %llu %llu %llu",
			      &ret_stat->n_threads, &ret_stat->start_ticks,
			      &ret_stat->virtual_bytes, &ret_stat->resident_pages) == 4;
}

static double clock_s(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / BH_NS_PER_S;
}

static void put_stat(struct bh_metrics_text *text)
{
	struct stat_line stat;
	double age_s;

	if (!stat_read(&stat))
		return;
	age_s = clock_s(CLOCK_BOOTTIME) - (double)stat.start_ticks / (double)sysconf(_SC_CLK_TCK);
	put_gauge(text, "process_start_time_seconds",
		  "Start of the process, in seconds since the Unix epoch.",
		  clock_s(CLOCK_REALTIME) - age_s);
	put_gauge(text, "bulkhead_uptime_seconds", "How long the process has been running.", age_s);
	put_gauge(text, "process_threads", "Threads of the process.", (double)stat.n_threads);
	put_gauge(text, "process_resident_memory_bytes", "Resident memory.",
		  (double)stat.resident_pages * (double)sysconf(_SC_PAGESIZE));
	put_gauge(text, "process_virtual_memory_bytes", "Virtual memory.",
		  (double)stat.virtual_bytes);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static double timeval_s(struct timeval tv)
{
	return (double)tv.tv_sec + (double)tv.tv_usec / 1e6;
}

static void put_cpu(struct bh_metrics_text *text)
{
	struct rusage usage;

	if (getrusage(RUSAGE_SELF, &usage) == 0)
		put_counter(text, "process_cpu_seconds", "Time on a CPU, user and system.",
			    timeval_s(usage.ru_utime) + timeval_s(usage.ru_stime));
}

/* From Linux 6.2 on the folder's size is the number, and needs no descriptor: when there is none
 * left this number is what one wants to see. */
static long count_fds(void)
{
	struct stat info;
	DIR *dir;
	long n = -3; /* ".", ".." and the descriptor that lists them */

	if (stat(FDS, &info) == 0 && info.st_size > 0)
		return (long)info.st_size;
	dir = opendir(FDS);
	if (!dir)
		return -1;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void put_fds(struct bh_metrics_text *text)
{
	struct rlimit limit;
	long n = count_fds();

	if (n >= 0)
		put_gauge(text, "process_open_fds", "Open file descriptors.", (double)n);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		put_gauge(text, "process_max_fds", "How many file descriptors may be open.",
			  (double)limit.rlim_cur);
}

void bh_process_metrics_render(struct bh_metrics_text *text, void *arg)
{
	(void)arg;
	put_stat(text);
	put_cpu(text);
	put_fds(text);
	put_counter(text, "bulkhead_log_dropped_lines",
		    "Log lines that were dropped because nobody took them fast enough.",
		    (double)bh_log_dropped());
}
