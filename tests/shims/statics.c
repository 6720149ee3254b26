/* SPDX-License-Identifier: BSD-3-Clause */
/* statics - opened by test_stack as a plugin would be: a function that calls back through others
 * that the library does not export. */
typedef void callback_fn(void *);

void statics_enter(callback_fn *callback, void *arg);

#ifdef __x86_64__
/* Without a size, as hand-written assembly often is. */
void bare_step(callback_fn *callback, void *arg) __attribute__((visibility("hidden")));
__asm__(".text\n"
	".hidden bare_step\n.globl bare_step\n.type bare_step, @function\n"
	"bare_step:\n"
	".cfi_startproc\n"
	"	mov %rdi, %rax\n"
	"	mov %rsi, %rdi\n"
	"	sub $8, %rsp\n"
	".cfi_adjust_cfa_offset 8\n"
	"	call *%rax\n"
	"	add $8, %rsp\n"
	".cfi_adjust_cfa_offset -8\n"
	"	ret\n"
	".cfi_endproc\n");
#else
#define bare_step(callback, arg) ((callback)(arg))
#endif

/* The empty asm after a call keeps it from becoming a jump, which would leave no frame. */
static __attribute__((noinline)) void static_step(callback_fn *callback, void *arg)
{
	bare_step(callback, arg);
	__asm__ volatile("" ::: "memory");
}

void statics_enter(callback_fn *callback, void *arg)
{
	static_step(callback, arg);
	__asm__ volatile("" ::: "memory");
}
